"""All bounds of the lanes: memory, connections and time that peers can use."""

from veil.veil_limits import BUCKET_SIZES, KIB

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
