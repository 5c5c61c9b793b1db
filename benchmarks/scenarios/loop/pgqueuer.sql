{{enqueue_many}}
{{claim}}
{{complete}}
