"""How objects, shards and batches are written: our form, and what a form has to know."""
