{{enqueue_10}}
{{claim_10}}
{{complete_10}}
