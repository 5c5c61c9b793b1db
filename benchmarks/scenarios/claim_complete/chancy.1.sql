{{claim_1}}
{{complete_1}}
