"""How often the audit is right about graders of which it is known whether they are sound."""
