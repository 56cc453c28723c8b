"""The index returns the ends of a label's closed chunks in pages."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veen.storage.index import Index

LABELS = [bytes([number]) * 32 for number in (1, 2, 3)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.integers(1, 40), max_size=12, unique=True).map(sorted),
    st.none() | st.integers(0, 50) | st.just((1 << 64) - 1),
    st.integers(1, 5),
)
def test_a_page_of_chunk_ends_is_that_of_all_of_them(
    tmp_path: Path, ends: list[int], from_seq: int | None, most: int
) -> None:
    index = Index(tmp_path / "index", durable=False)
    try:
        with index.write() as rows:
            for label, of_label in zip(LABELS, ([5, 10], ends, [7]), strict=True):
                for start, end in zip([1, *(end + 1 for end in of_label)], of_label, strict=False):
                    rows.put_chunk(label, start, end)
            expected = ends[-most:] if from_seq is None else [end for end in ends if end >= from_seq][:most]
            assert rows.chunk_ends(LABELS[1], from_seq, most) == expected
    finally:
        index.close()
