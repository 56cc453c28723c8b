"""What the keeper of a realm says: revocations, authority, label classes, schemas."""
