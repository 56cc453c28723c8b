"""A running hub: opens a data directory, replays the journal, serves, and stops without losing an answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

from plumbing.background import Background
from plumbing.durable import Disk
from plumbing.http import HttpServer
from plumbing.json_log import JsonLog, standard_error
from veen.core import (
    Checkpoint,
    Malformed,
    Receipt,
    Refused,
    Unavailable,
    Unverified,
    VeenError,
    checkpoint,
    naming,
    signing,
)
from veen.core.envelopes import CheckpointRequest, Equivocation, KeyRelease, ReleasedKeys, RotationRequest
from veen.core.handover import HandOver
from veen.core.hub_identity import HubKey, endorsement_digest
from veen.core.limits import MAX_WITNESS_SIGS
from veen.core.profile import LimitRegistry
from veen.core.retention import AttachmentPrune, Prune
from veen.hub import verifier
from veen.hub.admission_rules import Prefilter, Rules
from veen.hub.admission_state import AdmissionState, Outcome
from veen.hub.app import HubApp
from veen.hub.conditions import Conditions, Reason
from veen.hub.config import RELOADABLE, HubConfig
from veen.hub.cosigner import Cosigner, StartCheck, WitnessConnection, check_keys
from veen.hub.epochs import EpochEnds, StreamEpochs
from veen.hub.hub_time import ClockGap, ClockReading, ClockWatch, HubTime, check_start, system_clocks
from veen.hub.lost_entries import LostEntries
from veen.hub.read_api import ReadApi, Subscriptions
from veen.hub.read_executor import ReadExecutor
from veen.hub.retention_run import RetentionRun
from veen.hub.scrubber import Scrubber, ScrubTask
from veen.hub.sequencer import ControlLog, Sequencer
from veen.hub.signer import RemoteKey, Signer
from veen.hub.status import HubStatusPage, Metrics
from veen.hub.submit import SubmitPipeline
from veen.hub.uploads import Uploads
from veen.hub.witness_records import WitnessRecords
from veen.storage import frame, metadata, pruned_chunk, recovery, rotation, safe_open
from veen.storage.attachment_store import AttachmentStore
from veen.storage.lock import exclusive
from veen.storage.metadata import HubMetadata
from veen.storage.paths import Folders
from veen.storage.recovery import RecoveredLabels
from veen.storage.scrub import DirectoryScrub
from veen.storage.store import Lookup, Store

_READ_THREADS = 4
GRACE_S = 10.0
BUSY_PAUSE_S = 0.005
IDLE_PAUSE_S = 0.5


class HubService:
    """One hub on one data directory, on the running loop."""

    def __init__(
        self,
        config: HubConfig,
        *,
        disk: Disk | None = None,
        clocks: Callable[[], ClockReading] = system_clocks,
        background: Background | None = None,
    ) -> None:
        """Open and replay the data directory. Raises if it is locked, damaged, or not a data directory.

        Raises `ClockGap` if the wall clock is too far from the end of the log.
        """
        config.check()
        self._config = config
        self._disk = disk or Disk()
        self._clocks = clocks
        self._threads = background or Background()
        lines = standard_error()
        self.log = JsonLog(lines, "hub", config.role)
        self.metrics = Metrics()
        self.metrics.watch_log(lines)
        self.folders = Folders(config.data_dir)
        if not self.folders.identity.exists():
            raise Unavailable(f"{config.data_dir} is not a data directory of a hub; run `veen hub init` to create one")
        safe_open.check_folders(self.folders)
        if metadata.is_recovery_pending(self.folders):
            raise Malformed("journal", metadata.UNFINISHED_RECOVERY)
        with exclusive(self.folders.lock):
            rotation.finish_rotation(self._disk, self.folders)
        self.hub_metadata = metadata.read_metadata(self.folders)
        self.signer = Signer(self.folders, self.hub_metadata.identity)
        try:
            self._open()
        except BaseException:
            self.signer.close()
            raise

    def _open(self) -> None:
        config, control_key = self._config, self.signer.control_key()
        self.rules = Rules.of(
            self.hub_metadata.identity.hub_id,
            self.hub_metadata.profile,
            self.hub_metadata.limit_registry,
            config.admission,
            control_key.public_key,
            self.hub_metadata.identity.routing_key,
            self.hub_metadata.identity.realm_id,
            bare_tokens=(
                metadata.accepts_bare_tokens(self.folders)
                if config.accept_bare_tokens is None
                else config.accept_bare_tokens
            ),
        )
        self._prefilter = Prefilter(
            self.rules.hub_id, config.pow_difficulty, config.allow_networks, config.deny_networks
        )
        self.store = Store(
            self._disk,
            self.folders,
            self.hub_metadata.limits,
            self.sign_checkpoint,
            probe=True,
            closed=self._chunk_closed,
        )
        self._labels = LabelRotation(self.rules, self.store)
        state = AdmissionState(self.store, self.rules)
        self.replayed = state.replay()
        last_hub_ts = state.hub_ts
        self._recoveries = recovery.read_recoveries(self.folders)
        self._recovered = RecoveredLabels(self._recoveries)
        for one in self._recoveries:  # before that time an older key would sign, and it may have signed the same places
            state.hub_ts = max(state.hub_ts, one.statement.recovery.recovered_at)
        # The key that was retired must not sign after its hand-over, even if the clock is behind.
        state.hub_ts = max(state.hub_ts, rotation.signs_from(self.folders, self.hub_metadata.identity))
        self._limits_lock = Lock()
        self._stored_limits = self.hub_metadata.limit_registry
        self._set_limits(self.rules.limits_in_force.registry)
        try:
            self._write_limits()
        except OSError as error:
            raise Unavailable(f"limits.json cannot be written: {error.strerror}") from error
        self.time = HubTime(self._clocks, state.hub_ts, config.max_clock_step)
        try:
            check_start(self.folders, self.time.wall, last_hub_ts, config.max_start_gap)
        except ClockGap:
            self.store.close()
            raise
        try:
            self._ask_witnesses()
        except VeenError:
            self.store.close()
            raise
        control_log = ControlLog(self.store, state, self.rules, control_key)
        self.sequencer = Sequencer(state, self.rules, control_log, self.time.now)
        self.rules.limits_in_force.hub_ts = lambda: self.sequencer.hub_ts
        self.signer.at(self.sequencer.hub_ts)  # do not start without a usable key
        self.server = HttpServer(self.log.failed)
        self.metrics.watch(self.server)
        self.broken: asyncio.Future[BaseException] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scrub_task: ScrubTask | None = None

    async def start(self) -> None:
        """Start serving. Returns when the port is open."""
        config, loop = self._config, asyncio.get_running_loop()
        self.broken, self._loop = loop.create_future(), loop
        self._executor = self._threads.pool(_READ_THREADS, "read")
        self.conditions = conditions = Conditions(loop, self.log)
        self.metrics.watch_conditions(conditions)
        self.signer.attach(loop, conditions, self._break)
        self.server.on_refused = self._refused_connection
        self.server.on_full = lambda: self._refused_connection("total", None, refused=0)
        self.server.on_relieved = lambda cap, caller: conditions.leave(Reason.CONNECTION_OVERLOAD, (cap, caller))
        self._read_executor = read_executor = ReadExecutor(loop, self._executor, conditions, self.log.failed)
        lookup = Lookup(self.store)
        self._background: asyncio.Handle = loop.call_soon(self._background_step)
        self._subscriptions = Subscriptions(
            loop, self._executor, lookup, config.max_subscriptions(), read_executor.record_error
        )
        scrubber = self._start_scrubber(loop, read_executor)
        attachments = AttachmentStore(self._disk, self.folders)
        attachments.remove_drafts()
        self._witness_records = witness_records = WitnessRecords(
            self._disk,
            self.folders,
            self.store.index,
            self.hub_metadata.identity,
            config.witness_keys(),
            attachments,
            lambda found: loop.call_soon_threadsafe(self._equivocated, found),
        )
        pool = self._threads.pool(len(self._witnesses) or 1, "witness") if self._witnesses else self._executor
        self._cosigner = Cosigner(
            loop,
            pool,
            conditions,
            lookup,
            lambda: self.hub_metadata,
            witness_records.checkpoint,
            lambda label, upto_seq: reads.checkpoint(CheckpointRequest(label, upto_seq)).checkpoint,
            witness_records.add_witness,
            self._behind,
            self._witnesses,
        )
        self._witness_pool = pool
        if self._witnesses:
            self.metrics.watch_witnesses(lambda: self._cosigner.counts)
        self._lost_entries = lost_entries = LostEntries(
            self._disk,
            self.folders,
            self.hub_metadata.identity,
            lookup,
            self._recovered,
            lambda receipt: loop.call_soon_threadsafe(self._lost, receipt),
            witness_records.store_equivocation,
        )
        for receipt in lost_entries.stored():
            self._lost(receipt)
        self.uploads = Uploads(
            config,
            self.rules,
            self.store,
            attachments,
            read_executor,
            self.sequencer,
            conditions,
            self.metrics.uploaded,
        )
        self.clock = ClockWatch(
            self.time, config.max_start_gap, conditions, self.folders, self._disk, read_executor.run_unanswered
        )
        self.status = HubStatusPage(
            self.hub_metadata,
            self.rules,
            self.store,
            conditions,
            self.metrics,
            self.sequencer.state.realm,
            witness_records,
            lambda: self.pipeline.in_flight,
            self.clock,
            config.pow_difficulty,
            config.allow_revocation,
            config.read_access,
            scrubber,
        )
        self.pipeline = SubmitPipeline(
            loop,
            self.rules,
            self.store,
            self.sequencer,
            self.signer,
            verifier.start(loop, config.worker_count(), conditions, self._break, self.log.failed, self._threads),
            self.metrics,
            conditions,
            self.log,
            config.max_in_flight,
            self._threads,
            self.status,
            self._subscriptions,
            self._limits_lowered,
            self._break,
            log_submits=config.log_submits,
        )
        self._epoch_ends = EpochEnds(
            self.rules, self.store, self.sequencer.state, self._can_end, self.pipeline.log_event
        )
        reads = ReadApi(
            lookup,
            self._checkpoint_on_demand,
            self.metrics.proved,
            self._nodes_damaged,
            partial(pruned_chunk.tombstone, self.folders),
        )
        self._retention_pool = self._threads.pool(1, "retention")
        self._retention = retention = RetentionRun(
            self._disk,
            self.folders,
            self.store,
            self.rules,
            self.signer,
            lambda: self.hub_metadata,
            lambda: self.sequencer.state.retention,
            lambda label, hub_ts: self._labels.rotation(label, hub_ts)[0],
            attachments,
            self._log_on_loop,
            lambda error: loop.call_soon_threadsafe(read_executor.record_error, error, "retention"),
        )
        self.app = HubApp(
            config,
            self.rules,
            self._prefilter,
            read_executor,
            reads,
            self.pipeline,
            self._subscriptions,
            witness_records,
            lost_entries,
            self.uploads,
            self.status,
            self.clock,
            self.rotate_key,
            self.release_keys,
            self._cosigner.add,
            retention,
            self._retention_pool,
            StreamEpochs(self.store, lookup, self.rules, lambda: self.hub_metadata, lambda: self.sequencer.hub_ts),
        )
        self._log_recoveries()  # before the first client, so that the new key begins with them
        self._log_handovers()
        try:
            await self.server.start(self.app, config.host, config.port, tls=config.tls(), settings=config.http)
        except OSError as error:
            await self.stop(0)
            raise Unavailable(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from None
        hub_id, listen = self.hub_metadata.identity.hub_id.hex(), f"{config.host}:{self.server.port}"
        self.log.event("info", "started", hub_id=hub_id, listen=listen, replayed=self.replayed)

    def reload(self, found: HubConfig) -> None:
        """On the loop: use the reloadable settings of another configuration, and the certificate as it is now.

        Raises before anything is changed if the certificate cannot be used. Connections stay open.
        """
        config, kept = self._config.reloaded(found)
        tls = config.tls()
        changed = [name for name in RELOADABLE if getattr(config, name) != getattr(self._config, name)]
        if tls is not None:
            self.server.use_tls(tls)
        self._config = config
        self._prefilter.follow(config.pow_difficulty, config.allow_networks, config.deny_networks)
        self.app.config = self.app.gate.config = self.uploads.config = config
        self.pipeline.log_each_submit(config.log_submits)
        self.status.follow_settings(config.pow_difficulty, config.allow_revocation)
        self.log.event("info", "reloaded", changed=sorted(changed), needs_restart=sorted(kept))

    def rotate_key(self, asked: RotationRequest, done: Callable[[HandOver | Refused], None]) -> None:
        """Change to another key between two groups. `done` is called on the loop."""
        self.pipeline.between_groups(partial(self._begin_rotation, asked), partial(self._rotated, done))

    def _begin_rotation(self, asked: RotationRequest) -> Callable[[], tuple[HubMetadata, int]]:
        """On the loop, between groups: the old key signed nothing at or after the time that is chosen here."""
        at = max(self.sequencer.hub_ts, self.sequencer.state.hub_ts + 1, asked.valid_from)
        return partial(self._hand_over, asked, at)

    def _hand_over(self, asked: RotationRequest, at: int) -> tuple[HubMetadata, int]:
        """On another thread, while no group is open."""
        identity, old = self.hub_metadata.identity, self.signer.newest
        digest = endorsement_digest(identity.hub_id, asked.hub_pk, asked.valid_from)
        if identity.root is not None:
            signing.verify(identity.root.hub_pk, digest, asked.endorsement or b"", "root endorsement")
        endorsement = asked.endorsement if identity.root else old.sign(digest)
        added = HubKey(naming.key_id(asked.hub_pk), asked.hub_pk, asked.valid_from, endorsement=endorsement)
        entries = rotation.current_entries(self.store)
        labels = self._labels.rotation
        new = self.signer.key(added)
        rotation.hand_over(
            self._disk, self.folders, self.hub_metadata, old, new, added, at, asked.overlap_sec, entries, labels
        )
        try:
            return metadata.read_metadata(self.folders), at
        except (Malformed, Unavailable, Unverified) as error:
            raise rotation.InterruptedRotation(f"the new identity cannot be read: {error}") from error

    def _rotated(self, done: Callable[[HandOver | Refused], None], result: object) -> None:
        """On the loop, before the next group: sign with the new key from now on, and show the new record."""
        if isinstance(result, Unavailable | Unverified | Malformed) and not isinstance(
            result, rotation.InterruptedRotation
        ):
            done(Refused("E.CONFLICT", f"the key was not changed: {result}"))
            return
        if isinstance(result, Exception):
            # The next start completes the rotation, so the old key must not sign until then.
            done(Refused("E.UNAVAILABLE", "the change of the key was interrupted: the hub stops, and completes it"))
            raise result
        assert isinstance(result, tuple)
        self.hub_metadata, self.sequencer.state.hub_ts = result
        self._set_limits(self._durable_limits)  # limits.json may be about to be written
        self.time.advance(self.sequencer.state.hub_ts)
        identity = self.hub_metadata.identity
        self.store.binding.follow(self.hub_metadata)
        self.signer.follow(identity)
        self.status.follow(self.hub_metadata)
        self._witness_records.follow(identity)
        self._lost_entries.follow(identity)
        self._log_handovers()
        done(rotation.read_handovers(self.folders, identity)[-1])

    def release_keys(self, asked: KeyRelease) -> ReleasedKeys:
        """On any thread: check that no retired key has to sign any more, and start a signer that has none of them.

        With epochs a retired key signs the checkpoints of its epochs until the log has all entries of that time.
        """
        identity = self.hub_metadata.identity
        if asked.hub_id != identity.hub_id:
            raise Refused("E.CONFLICT", f"this is hub {identity.hub_id.hex()}")
        try:
            rotation.check_needless(self.hub_metadata, self.sequencer.hub_ts)
        except Unavailable as error:
            raise Refused("E.CONFLICT", str(error)) from None
        if self.rules.profile.epoch_sec:
            retired_at = rotation.signs_from(self.folders, identity)
            for tail in self.store.tails():
                if tail.records and Receipt.decode(frame.read(tail.records[0].frame)[0].receipt).hub_ts < retired_at:
                    text = "the log does not have all entries from before the hand-over yet"
                    raise Refused("E.UNAVAILABLE", text, retry_after=1)
            if self._epoch_ends.ended_before < self.rules.profile.epoch(identity.newest.valid_from):
                text = "the last checkpoints of the epochs before the newest key are not all signed yet"
                raise Refused("E.UNAVAILABLE", text, retry_after=1)
        self.signer.forget()
        return ReleasedKeys(tuple(key.key_id for key in identity.signing_keys[:-1]))

    def _log_handovers(self) -> None:
        """Log the hand-overs that are not on the control stream yet. A crash may log one twice, which is harmless."""
        for made in rotation.unlogged_handovers(self.folders, self.hub_metadata.identity):
            self.pipeline.log_event(made, partial(self._logged, partial(rotation.mark_logged, made=made)))

    def _log_recoveries(self) -> None:
        """Log the statements of recoveries in the same way."""
        for made in recovery.unlogged(self.folders, self._recoveries):
            self.pipeline.log_event(made, partial(self._logged, partial(recovery.mark_logged, statement=made)))

    def _log_on_loop(
        self, event: Prune | AttachmentPrune, done: Callable[[Outcome], None], check: Callable[[], None]
    ) -> None:
        """On any thread: log an event on the control stream."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.pipeline.log_event, event, done, check)

    def _logged(self, mark: Callable[[Disk, Folders], None], outcome: Outcome) -> None:
        if not isinstance(outcome, Refused):
            self._executor.submit(mark, self._disk, self.folders)

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Finish running requests, catch up, close."""
        self.status.stopping = True
        self._background.cancel()
        await self.server.stop(grace_s)
        await self.pipeline.close()
        self._cosigner.close()
        self._witness_pool.shutdown()
        self._retention.stop()
        self._retention_pool.shutdown()
        self._executor.shutdown()
        self.close()
        self.conditions.close()
        self.log.stopped()

    def close(self) -> None:
        """Release the data directory and end the signer. `stop` does it for a hub that was started."""
        if self._scrub_task:
            self._scrub_task.close()
        self.store.close()
        self.signer.close()

    def _ask_witnesses(self) -> None:
        """Compare the log with what the witnesses hold. Raises if it is behind, or if too few answer."""
        identity, addresses = self.hub_metadata.identity, self._config.witness_addresses
        check_keys(identity, self._config.witness_keys())
        self._witnesses: tuple[WitnessConnection, ...] = tuple(WitnessConnection(one) for one in addresses)
        control_label = naming.label(
            identity.routing_key, self.rules.control_stream, self.rules.profile.epoch(int(self.time.now()))
        )
        check = StartCheck(
            self.hub_metadata,
            Lookup(self.store),
            self._recovered,
            control_label,
            lambda stated, made: recovery.add_witness_sig(self._disk, self.folders, stated.statement, made.sig),
            lambda url, why: self.log.event("warn", "witness_silent", witness=url, error=why),
        )
        check.run(self._witnesses, self._config.start_quorum())
        self._recovered = RecoveredLabels(recovery.read_recoveries(self.folders))  # with the new cosignatures

    def _chunk_closed(self, label: bytes, upto_seq: int, entries: int) -> None:
        """On the catch-up thread: a regular checkpoint is stored."""
        self.metrics.checkpointed(entries)
        if self._witnesses and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cosigner.add, label, upto_seq)

    def _behind(self, label: bytes, size: int) -> None:
        """On the loop: a witness holds more of a label than the log, or another root. Accept nothing more there."""
        self.sequencer.stopped.add(label)
        if not self.conditions.holds(Reason.LOST_ENTRIES, label):
            self.conditions.enter(Reason.LOST_ENTRIES, source=label, refused=0, label=label.hex(), stream_seq=size)

    def _start_scrubber(self, loop: asyncio.AbstractEventLoop, read_executor: ReadExecutor) -> Scrubber | None:
        if not self._config.scrub_bytes_per_s:
            return None
        scrubber = Scrubber(
            DirectoryScrub(self.folders, self.store.index, lambda: self.hub_metadata, self.signer.check_file),
            self.folders.scrub,
            self._config.scrub_bytes_per_s,
            float(self._config.scrub_pause_s),
        )
        self.metrics.watch_scrubber(scrubber)
        self._scrub_task = ScrubTask(
            loop,
            scrubber,
            self.conditions,
            self.log,
            self._threads.pool(1, "scrub"),
            read_executor.record_error,
            self._nodes_damaged,
        )
        return scrubber

    async def run_until(self, stopped: asyncio.Event, ready: Callable[[int], None] | None = None) -> None:
        """Serve until `stopped` is set. Raises if the disk fails; the process must exit then.

        `ready` is called with the port once it is open.
        """
        await self.start()
        assert self.broken is not None
        if ready:
            ready(self.server.port)
        self.broken.add_done_callback(lambda _: stopped.set())
        await stopped.wait()
        if self.broken.done():
            raise self.broken.result()
        await self.stop()

    def sign_checkpoint(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        """Sign the checkpoint of a prefix whose last entry has `hub_ts`."""
        if upto_seq <= self.hub_metadata.lineage.upto(label):
            return self._origins_checkpoint(label, upto_seq)
        epoch, previous = self._labels.rotation(label, hub_ts)
        stored = self._stored(label, upto_seq)
        if stored is not None and (stored.label_prev, stored.mmr_root, stored.epoch) != (previous, mmr_root, epoch):
            stored = None
        if stored is not None and self.rules.profile.epoch_sec and not self._may_sign(epoch):
            return stored
        made = checkpoint.sign(
            self._checkpoint_key(epoch, hub_ts),
            label_prev=previous,
            label_curr=label,
            upto_seq=upto_seq,
            mmr_root=mmr_root,
            epoch=epoch,
        )
        return replace(made, witness_sigs=stored.witness_sigs) if stored is not None else made

    def _stored(self, label: bytes, upto_seq: int) -> Checkpoint | None:
        """The stored checkpoint of a prefix, which may be cosigned, and whose key may be destroyed."""
        try:
            found = rotation.stored_checkpoint(self.folders, label, upto_seq)
            if found is not None:
                self.hub_metadata.identity.verify_checkpoint(found, self.rules.profile)
        except (Malformed, Unverified):
            return None  # damaged, as fsck reports
        return found

    def _can_end(self, label: bytes, epoch: int, upto_seq: int) -> bool:
        """Whether the last checkpoint of a label can be signed, or was stored at a rotation."""
        if upto_seq <= self.hub_metadata.lineage.upto(label):
            kept = self.hub_metadata.lineage.checkpoint(label)
            return kept is not None and kept.upto_seq == upto_seq
        if self._may_sign(epoch) or self._stored(label, upto_seq) is not None:
            return True
        window = rotation.epoch_window(self.hub_metadata, epoch)
        active = [key for key in self.hub_metadata.identity.signing_keys if key.active_between(*window)]
        try:
            return bool(active) and self.signer.key(active[-1]) is not None
        except (Malformed, Unavailable):
            return False  # it was destroyed

    def _checkpoint_key(self, epoch: int, hub_ts: int) -> RemoteKey:
        """The newest key, or with epochs the newest of those that were active in the epoch."""
        if not self.rules.profile.epoch_sec or self._may_sign(epoch):
            return self.signer.newest
        identity, window = self.hub_metadata.identity, rotation.epoch_window(self.hub_metadata, epoch)
        active = [key for key in identity.signing_keys if key.active_between(*window)]
        return self.signer.key(active[-1]) if active else self.signer.at(hub_ts)

    def _may_sign(self, epoch: int) -> bool:
        """Whether a checkpoint of that epoch is valid under the newest key."""
        return self.hub_metadata.identity.newest.active_between(*rotation.epoch_window(self.hub_metadata, epoch))

    def _checkpoint_on_demand(self, label: bytes, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        """As `sign_checkpoint`, but never with a retired key: prefixes of its epochs have stored checkpoints only."""
        if self.rules.profile.epoch_sec and upto_seq > self.hub_metadata.lineage.upto(label):
            epoch, _ = self._labels.rotation(label, hub_ts)
            if not self._may_sign(epoch):
                found = rotation.stored_checkpoint(self.folders, label, upto_seq)
                if found is None:
                    text = "no checkpoint of this prefix was stored while the key of its epoch was active"
                    raise Refused("E.NOT_FOUND", text, detail={"label": label.hex(), "stream_seq": upto_seq})
                return found
        made = self.sign_checkpoint(label, upto_seq, mmr_root, hub_ts)
        if upto_seq <= self.hub_metadata.lineage.upto(label):
            return made
        own = self._overlapping()
        return made.witnessed(*own) if len(made.witness_sigs or ()) + len(own) <= MAX_WITNESS_SIGS else made

    def _overlapping(self) -> tuple[RemoteKey, ...]:
        """The old and the new key while both are valid: clients that pin one key accept either. 001, KEX0.1."""
        *_, old, new = None, *self.hub_metadata.identity.signing_keys
        if old is None or old.valid_until is None or self.sequencer.hub_ts >= old.valid_until:
            return ()
        try:
            return self.signer.key(old), self.signer.key(new)
        except (Unavailable, Malformed):
            return ()  # the old key was destroyed

    def _origins_checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint:
        """A checkpoint that the origin of a fork signed. A fork does not sign for its origin."""
        path, kept = self.folders.checkpoint(label, upto_seq), self.hub_metadata.lineage.checkpoint(label)
        if path.exists():
            return Checkpoint.decode(safe_open.read(path))
        if kept is None or kept.upto_seq != upto_seq:
            raise Refused("E.NOT_FOUND", "the origin of this fork has no checkpoint there")
        return kept

    def _background_step(self) -> None:
        """Watch the clock, and do a step of the work that a start does not wait for. Pauses leave the loop free."""
        try:
            self.clock.check()
            more = self.store.open_chunks.check()
            more = self.sequencer.state.streams.prepare(self.sequencer.hub_ts) or more
            more = self._epoch_ends.step(self.sequencer.hub_ts) or more
        except Exception as damage:  # noqa: BLE001  the index is damaged
            self._break(damage)
            return
        pause_s = BUSY_PAUSE_S if more else IDLE_PAUSE_S
        self._background = asyncio.get_running_loop().call_later(pause_s, self._background_step)

    def _limits_lowered(self, lowered: LimitRegistry) -> None:
        """On the loop: a durable group lowered limits. Write limits.json."""
        self._set_limits(lowered)
        self._read_executor.run_unanswered(self._write_limits)

    def _set_limits(self, durable: LimitRegistry) -> None:
        self._durable_limits = durable
        self.hub_metadata = replace(self.hub_metadata, limits=durable.limits, earlier_limits=durable.earlier)

    def _write_limits(self) -> None:
        """On any thread: limits.json follows the log. After a crash before this, the next start does it."""
        with self._limits_lock:
            if self._stored_limits != self._durable_limits:
                lowered = self._durable_limits
                metadata.write_limits(self._disk, self.folders, lowered)
                self._stored_limits = lowered

    def _nodes_damaged(self, damage: Malformed) -> None:
        """On any thread: tree nodes do not match the log. The next start rebuilds them with the index."""
        if self.store.index.on_damage:
            self.store.index.on_damage(damage)

    def _equivocated(self, found: Equivocation) -> None:
        """On the loop: someone proved that this hub signed a contradiction. The log states the label's policy."""
        label, stream_seq = found.first.label, found.first.stream_seq
        policy = self.sequencer.state.policy_of(label, self.sequencer.hub_ts)
        self.log.event("error", "equivocation", label=label.hex(), stream_seq=stream_seq, policy=policy)

    def _lost(self, receipt: Receipt) -> None:
        """On the loop: a receipt shows that entries of a label are lost. Nothing more is accepted there."""
        self.sequencer.stopped.add(receipt.label)
        if not self.conditions.holds(Reason.LOST_ENTRIES, receipt.label):
            self.conditions.enter(
                Reason.LOST_ENTRIES,
                source=receipt.label,
                refused=0,
                label=receipt.label.hex(),
                stream_seq=receipt.stream_seq,
            )

    def _refused_connection(self, cap: str, caller: bytes | None, refused: int = 1) -> None:
        self.conditions.enter(
            Reason.CONNECTION_OVERLOAD,
            source=(cap, caller),
            refused=refused,
            cap=cap,
            connections=self.server.connections,
        )

    def _break(self, error: BaseException) -> None:
        self.log.fatal(error)
        if self.broken and not self.broken.done():
            self.broken.set_result(error)


@dataclass(frozen=True, slots=True)
class LabelRotation:
    """The epochs that a checkpoint names: both sides of a rotation. Thread-safe. Spec §4.4.1."""

    _rules: Rules
    _store: Store

    def rotation(self, label: bytes, hub_ts: int) -> tuple[int, bytes]:
        """`(epoch, label_prev)` of a label with an entry at `hub_ts`.

        With epochs every label belongs to one epoch. `label_prev` is the label of its stream one epoch earlier.
        """
        if not self._rules.profile.epoch_sec:
            return 0, label
        found = self._stream_and_epoch(label)
        if found is None:  # accepted under other limits
            return self._rules.profile.epoch(hub_ts), label
        stream, epoch = found
        return epoch, self._label(stream, epoch - 1) if epoch else label

    def _stream_and_epoch(self, label: bytes) -> tuple[bytes, int] | None:
        for tail in self._store.tails():
            if label in tail.epochs:
                return tail.epochs[label]
        with self._store.index.read() as rows:
            found = rows.stream_and_epoch(label)
            if found and self._label(*found) != label:
                raise Malformed("index", f"{label.hex()} does not match the stream of its row")
        return found

    def _label(self, stream: bytes, epoch: int) -> bytes:
        return naming.label(self._rules.routing_key, stream, epoch)
