{{claim}}
{{complete}}
