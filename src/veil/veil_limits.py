"""All fixed bounds and defaults of VEIL: those of spec §3 and §6, and those that the spec leaves open.

The second half bounds the memory, connections and time that peers can use on the lanes.
"""

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


# A shard of the largest bucket is the longest frame.
MAX_FRAME_BYTES = BUCKET_SIZES[-1]
# With one byte for the message kind.
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES + 1

# Maximum data in flight to a peer without confirmation.
WINDOW_FRAMES = 64
WINDOW_BYTES = 2 * KIB * KIB

# Sessions in total, unauthenticated links per lane, and sessions per peer and lane.
MAX_SESSIONS = 256
MAX_UNAUTHENTICATED = 64
MAX_SESSIONS_PER_PEER = 4

DIAL_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
# An idle session sends pings, and ends after this much silence.
PING_SECONDS = 5.0
SILENCE_SECONDS = 20.0

FIRST_REDIAL_SECONDS = 0.25
MAX_REDIAL_SECONDS = 60.0

# Protocol violations before an address is banned, and the duration of the ban.
MAX_STRIKES = 8
BAN_SECONDS = 600.0
MAX_BANS = 4_096

# File lane: size of a parcel, maximum unread parcels per folder, and scan interval.
PARCEL_BYTES = 4 * KIB * KIB
MAX_PARCELS = 1_024
SCAN_SECONDS = 0.5
# Parcels from senders without session that one scan verifies.
NEW_SENDERS_PER_SCAN = 16
# WebRTC session descriptions usually have a few thousand characters.
MAX_SIGNAL_BYTES = 64 * KIB
