from __future__ import annotations

from rollout.sandbox.output import BoundedOutput


def test_short_output_is_kept_whole() -> None:
    output = BoundedOutput(chars=9, max_bytes=100)
    assert output.feed(b"123456789")
    assert output.text() == "123456789"


def test_long_output_keeps_head_and_tail_and_says_what_is_missing() -> None:
    output = BoundedOutput(chars=9, max_bytes=100)
    assert output.feed(b"abcdefghij0123456789")
    assert output.text() == "abcdef\n[11 characters cut]\n789"


def test_where_the_reads_fell_does_not_show() -> None:
    data = "zwölf Boxkämpfer 🥊 ".encode() * 9
    whole = BoundedOutput(chars=30, max_bytes=1000)
    whole.feed(data)
    bits = BoundedOutput(chars=30, max_bytes=1000)
    for i in range(len(data)):
        bits.feed(data[i : i + 1])
    assert bits.text() == whole.text()


def test_a_flood_is_cut_at_the_same_byte_however_it_arrives() -> None:
    whole, bits = (BoundedOutput(chars=9, max_bytes=10) for _ in range(2))
    assert not whole.feed(b"0123456789ABCDEF")
    assert [bits.feed(b"012"), bits.feed(b"3456789"), bits.feed(b"ABC")] == [True, True, False]
    assert whole.text() == bits.text() == "012345\n[1 characters cut]\n789"
