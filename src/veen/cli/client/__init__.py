"""The commands of those who write and read: keys, leave to write, sending, reading, proving."""
