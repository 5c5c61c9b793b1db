{{claim_10}}
{{complete_many}}
