{{claim_100}}
{{complete}}
