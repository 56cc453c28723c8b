"""The query service: answers with evidence, and queries and digests recorded as recorder events. See docs/query.md.

`descriptor` and `digest` define queries and results. `execution` runs a query, and `answer_verify` checks a result.
`query_service` manages queries, and `query_app` serves them over HTTP.
"""
