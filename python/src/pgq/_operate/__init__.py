"""What the command line and the dashboard share: statements, searches and diagnoses."""
