"""Administration of a realm: revocations, authority, label classes, schemas."""
