{{claim_1}}
{{complete_one}}
