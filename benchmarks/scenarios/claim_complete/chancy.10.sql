{{claim_10}}
{{complete_10}}
