{{enqueue_10}}
{{claim}}
{{complete}}
