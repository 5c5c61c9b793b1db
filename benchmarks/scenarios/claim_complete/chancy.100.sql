{{claim_100}}
{{complete_100}}
