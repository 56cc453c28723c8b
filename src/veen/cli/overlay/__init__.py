"""Commands over the state of a stream: `declaring` has the options they share, `asking` and `saying` do the work."""
