"""All fixed bounds. Spec §14. The limits that a hub may lower are in `profile.Limits`."""

WIRE_VERSION = 1
SERVER_VERSION = "0.0.1"

# Spec §14. A hub may lower those that `profile.Limits` lists; the others are fixed.
MAX_MSG_BYTES = 1_048_576
MAX_HDR_BYTES = 16_384
MAX_BODY_BYTES = 1_048_320
MAX_PROOF_PATH = 64
MAX_CAP_CHAIN = 8
MAX_ATTACHMENTS = 1_024

# The spec leaves these numbers to the implementation, or leaves an array unbounded that a reader must bound.
MAX_ATTACHMENT_BYTES = 1 << 30
MAX_CHUNK_BYTES = 1 << 30
MAX_CHECKPOINT_INTERVAL = 1 << 20
MAX_CAP_RATE = 1_000_000
MAX_EPOCH_SKEW_SEC = 86_400
MAX_CLIENT_ID_LIFETIME_SEC = 1 << 32
MAX_CLIENT_ID_MSGS = 1 << 32
MAX_PEAKS = 64  # one per set bit of a 64-bit size
MAX_WITNESS_SIGS = 64
MAX_HELD_LABELS = 256  # in one answer of a witness
MAX_WITNESSED_LABELS = 65_536  # of one hub
MAX_WITNESSED_HUBS = 1_024
MAX_CAP_STREAMS = 1_024
MAX_HUB_KEYS = 1_024
MAX_REPLICA_HUBS = 1_024
MAX_AUTHORITY_TTL_SEC = 400 * 86_400
MAX_POW_CHALLENGE_BYTES = 256
MAX_POW_DIFFICULTY = 40  # zero bits that a hub may require
MAX_CHUNKS_PER_LABEL = 1 << 20
MAX_BOUND_CHECKPOINTS = 1 << 24
MAX_ZSTD_LEVEL = 19
MAX_LIMIT_CHANGES = 1_024  # of one hub
MAX_ORIGINS = 64  # length of a chain of forks
MAX_ORIGIN_LABELS = 65_536
MAX_PAD_BLOCK = 65_536
MAX_UPLOAD_SKEW_SEC = 300
MAX_READ_PROOF_SEC = 120
MAX_EVIDENCE = 1_024
MAX_RECOVERIES = 64
MAX_RECOVERED_LABELS = 1_048_576
MAX_ENDED_LABELS = 256  # in one event
MAX_PAGE_ITEMS = 1_000
MAX_PAGE_BYTES = 16 * MAX_MSG_BYTES
LEAST_MSG_BYTES = 512
ENTRY_OVERHEAD_BYTES = 1_024  # upper bound on a log entry's header and receipt
LEAST_CHUNK_BYTES = LEAST_MSG_BYTES + ENTRY_OVERHEAD_BYTES
CLOSE_PRUNED = 4_410  # WebSocket close code of a subscription whose next entry was pruned

# Defaults of the limits that a hub may set.
DEFAULT_ATTACHMENT_BYTES = 64 * MAX_MSG_BYTES
DEFAULT_CHUNK_BYTES = 64 * MAX_MSG_BYTES
DEFAULT_CHECKPOINT_INTERVAL = 65_536
DEFAULT_CAP_RATE = 100_000
DEFAULT_EPOCH_SKEW_SEC = 60

# Files that are encrypted with a passphrase, and the cost of one guess that a reader accepts.
MAX_SEALED_BYTES = 1 << 23
MAX_KDF_PASSES = 16
LEAST_KDF_KIB, DEFAULT_KDF_KIB, MAX_KDF_KIB = 8_192, 65_536, 262_144
MAX_ROOT_REQUEST_BYTES = 1 << 16

# Text and nesting in envelopes and in untyped values.
MAX_TEXT_BYTES = 1_024
MAX_DETAIL_BYTES = 4_096
MAX_RULES = 4_096  # retention policies and holds of one hub
MAX_REASON_BYTES = 256
MAX_PRUNED_ATTACHMENTS = 1_024  # in one event
ATTACHMENT_GRACE_SEC = 30 * 86_400  # a message may wait so long in an outbox after its attachments were uploaded
MAX_VALUE_DEPTH = 16
MAX_JSON_BYTES = 64 * MAX_MSG_BYTES
MAX_JSON_DEPTH = 64
MAX_EXACT_INT = 2**53 - 1  # canonical JSON numbers are doubles
