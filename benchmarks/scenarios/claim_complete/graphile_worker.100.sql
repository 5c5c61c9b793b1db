{{claim_100}}
{{complete_many}}
