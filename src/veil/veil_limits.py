"""Every fixed bound and default of VEIL, in one place. Spec §3 and §6, and what they leave open."""

KIB = 1024

EPOCH_SECONDS = 86_400
EPOCH_OVERLAP_SECONDS = 3_600
EPOCH_HISTORY_SECONDS = 7 * EPOCH_SECONDS
CACHE_TTL_SECONDS = 90 * 60

TARGET_BATCH_BYTES = 96 * KIB
# Of an object without its padding: padded to its shards it may be larger than this.
MAX_OBJECT_BYTES = 256 * KIB
MAX_BATCH_ITEMS = 4_096

BUCKET_SIZES = tuple(size * KIB for size in (2, 4, 8, 16, 32, 64))
# An index is one byte of CBOR, so that all shards of an object have room for equally much.
MAX_SHARDS = 24
# The most that k shards of the largest bucket can hold: nothing longer is ever looked at as an object.
MAX_GROUP_BYTES = MAX_SHARDS * BUCKET_SIZES[-1]

MAX_UINT16 = (1 << 16) - 1
MAX_UINT32 = (1 << 32) - 1

# A shard pays for this many tries to put its object together; tries that are not used are saved up.
ATTEMPTS_PER_SHARD = 16
# Shards that differ and claim the same index of the same object.
MAX_RIVALS = 8

MAX_INBOX_BYTES = 64 * KIB * KIB
MAX_INBOX_DONE = 65_536
MAX_GROUP_GENERATIONS = 3
