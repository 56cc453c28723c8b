"""All fixed bounds and defaults of VEIL: those of spec §3 and §6, and those that the spec leaves open."""

KIB = 1024

EPOCH_SECONDS = 86_400
EPOCH_OVERLAP_SECONDS = 3_600
EPOCH_HISTORY_SECONDS = 7 * EPOCH_SECONDS
CACHE_TTL_SECONDS = 90 * 60

TARGET_BATCH_BYTES = 96 * KIB
# Bound of an object without padding. With padding it may be larger.
MAX_OBJECT_BYTES = 256 * KIB
MAX_BATCH_ITEMS = 4_096

BUCKET_SIZES = tuple(size * KIB for size in (2, 4, 8, 16, 32, 64))
# Up to 24, every index is one byte of CBOR, so all shards of an object have the same payload size.
MAX_SHARDS = 24
# The capacity of k shards of the largest bucket. Decoders reject longer objects.
MAX_GROUP_BYTES = MAX_SHARDS * BUCKET_SIZES[-1]

MAX_UINT16 = (1 << 16) - 1
MAX_UINT32 = (1 << 32) - 1

# Each shard adds this many attempts to the budget for restoring its object.
ATTEMPTS_PER_SHARD = 16
# Different shards kept for the same index of the same object.
MAX_RIVALS = 8

MAX_INBOX_BYTES = 64 * KIB * KIB
MAX_INBOX_DONE = 65_536
MAX_GROUP_GENERATIONS = 3
