"""The worker: `worker` is what applications see, `run` what happens while it works."""
