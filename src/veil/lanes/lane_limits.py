"""Every bound of the lanes, in one place: what one peer can make a node hold, and for how long."""

from veil.veil_limits import BUCKET_SIZES, KIB

# A shard of the largest bucket: nothing that nodes say to each other is longer.
MAX_FRAME_BYTES = BUCKET_SIZES[-1]
# With the byte that says what it is.
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES + 1

# What may be under way to a peer before it has said that it took some of it in.
WINDOW_FRAMES = 64
WINDOW_BYTES = 2 * KIB * KIB

# Connections in all, those of them that have not yet said who they are, and those of one node.
MAX_SESSIONS = 256
MAX_UNAUTHENTICATED = 64
MAX_SESSIONS_PER_PEER = 4

DIAL_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
# With nothing else to say, a session asks whether the other end is still there; and gives up where it is not.
PING_SECONDS = 5.0
SILENCE_SECONDS = 20.0

FIRST_REDIAL_SECONDS = 0.25
MAX_REDIAL_SECONDS = 60.0

# What a peer may send that is no frame, before it is shown out, and for how long it then stays out.
MAX_STRIKES = 8
BAN_SECONDS = 600.0
MAX_BANS = 4_096

# A file lane writes parcels of so many bytes, leaves no more than so many of them in a folder, and looks so often.
PARCEL_BYTES = 4 * KIB * KIB
MAX_PARCELS = 1_024
SCAN_SECONDS = 0.5
# Parcels of senders it has no session with that a file lane opens at one look.
NEW_SENDERS_PER_SCAN = 16
# Descriptions of WebRTC sessions are text of a few thousand characters.
MAX_SIGNAL_BYTES = 64 * KIB
