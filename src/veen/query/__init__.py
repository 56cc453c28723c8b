"""Answers that carry their own evidence: queries and digests as recorder events. See docs/query.md.

`descriptor` and `digest` say what a query and a result are; `asking` and `verifying` make one of the other;
`service` runs them, behind `app`.
"""
