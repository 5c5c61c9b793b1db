{{claim_1}}
{{complete}}
