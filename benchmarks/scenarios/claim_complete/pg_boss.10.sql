{{claim_10}}
{{complete}}
