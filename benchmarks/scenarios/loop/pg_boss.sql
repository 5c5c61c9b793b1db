{{enqueue_many}}
{{claim_10}}
{{complete}}
