"""An hour of jobs that come at a rate while somebody keeps a snapshot."""

import dataclasses

from benchmarks.scenarios.held_offered.scenario import SCENARIO as _SHORT

SCENARIO = dataclasses.replace(
    _SHORT,
    title="An hour of 2,000 jobs/s while xmin is held",
    description=(
        "One job per transaction with a payload of 256 bytes, at 2,000 per second, and 4 workers "
        "that claim and complete batches of 10, and pause for 5 ms when nothing came: first "
        "undisturbed for a minute, then while a REPEATABLE READ transaction is open for an hour. "
        "p99 is of the time from when the transaction that enqueued a job began to the end of the "
        "claim, in one batch of 20; it does not have what a producer itself was late, of which "
        "the lag is the most. Sizes are those a minute after the snapshot was taken and at the "
        "end. Checkpoints come as by default."
    ),
    systems=("pgq",),
    standard=False,
    held=3600,
)
