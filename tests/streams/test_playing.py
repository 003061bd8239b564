"""Recordings that are played faster, in a loop or by a script, and scripts that are refused."""

import numpy as np
import pytest
from draw_samples import draw_video
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from waiting import call_at, wait_until

from ekya.core.errors import UserError
from ekya.streams.ingest.frame import CameraOutage
from ekya.streams.ingest.playing import Burst, Joins, Lost, Night, PlayConfig, PlayedSpec, script_time_us
from ekya.streams.ingest.process import SourceProcess
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic import CitySpec

CLASSES = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
S = 1_000_000
PLAIN = CitySpec(seed=3, fps=10, duration_s=3.0, width=64, height=48)


def played(*script, **play):
    spec = PlayedSpec(source=PLAIN, play=PlayConfig(script=script, **play))
    return list(spec.open(CLASSES).frames())


@pytest.fixture(scope="module")
def plain():
    return list(PLAIN.open(CLASSES).frames())


def times(taken):
    return [frame.t_us for frame, _ in taken]


def test_script_loss_drops_its_frames(plain):
    left = played(Lost(at_s=1.0, for_s=0.5))
    assert times(left) == [t_us for t_us in times(plain) if not S <= t_us < 1_500_000]
    assert [frame.index for frame, _ in left] == list(range(25))
    assert (left[10][0].image == plain[15][0].image).all()
    assert (left[10][1].tracks == plain[15][1].tracks).all()


def test_script_loss_is_announced_before_it(plain):
    spec = PlayedSpec(
        source=PLAIN, play=PlayConfig(script=(Lost(at_s=1.0, for_s=0.5), Lost(at_s=2.9, for_s=9)))
    )
    shown = list(spec.open(CLASSES).frames_and_outages())
    outages = {at: one for at, one in enumerate(shown) if isinstance(one, CameraOutage)}
    assert [(at, one.from_us, one.until_us) for at, one in outages.items()] == [
        (10, S, 1_500_000),
        (25, 2_900_000, 11_900_000),
    ]


def test_script_loss_in_a_process_sets_lost():
    spec = PlayedSpec(source=PLAIN, play=PlayConfig(script=(Lost(at_s=0.5, for_s=1e6),)))
    arrived = []
    with SourceProcess(spec, CLASSES) as process:
        process.wait_open()
        call_at(process.start_frames)
        wait_until(lambda: arrived.extend(process.poll_frames(0.05)) or process.lost is not None)
    assert [one.index for one in arrived] == list(range(5))


def test_script_join_shifts_the_recording(plain):
    late = played(Joins(at_s=2.0))
    assert times(late) == [t_us + 2 * S for t_us in times(plain)]
    assert (late[0][0].image == plain[0][0].image).all()


def test_script_burst_speeds_up_the_recording(plain):
    fast = played(Burst(at_s=1.0, for_s=0.5, factor=2))
    assert len(fast) == len(plain)
    assert times(fast)[:10] == times(plain)[:10]
    assert times(fast)[10:20] == [S + at * 50_000 for at in range(10)]
    assert times(fast)[20:] == [t_us - 500_000 for t_us in times(plain)[20:]]


def test_script_night_darkens_and_keeps_truth(plain):
    night = Night(at_s=1.0, for_s=1.0, brightness=0.25, noise=6.0)
    dark = played(night)
    for at, ((frame, truth), (before, known)) in enumerate(zip(dark, plain, strict=True)):
        assert (truth.boxes == known.boxes).all()
        assert (frame.boxes == before.boxes).all()
        if not 10 <= at < 20:
            assert (frame.image == before.image).all()
            continue
        assert frame.image.mean() == pytest.approx(0.25 * before.image.mean(), abs=2.0)
        grain = frame.image.astype(float) - 0.25 * before.image
        assert grain.std() == pytest.approx(6.0, abs=1.5)
    assert all(
        (one.image == other.image).all() for (one, _), (other, _) in zip(dark, played(night), strict=True)
    )
    assert not (dark[10][0].image == played(Night(at_s=1.0, for_s=1.0, seed=1))[10][0].image).all()


def test_script_night_leaves_the_source_picture():
    image = np.full((4, 4, 3), 200, np.uint8)
    Night(at_s=0, for_s=1).darken_picture(image, 0)
    assert (image == 200).all()


def test_script_speed_scales_event_times():
    play = PlayConfig(speed=2.0, script=(Joins(at_s=4.0), Lost(at_s=10.0, for_s=6.0)))
    assert play.joins_us == 2 * S
    assert play.outages_us == ((5 * S, 8 * S),)
    assert times(played(Joins(at_s=4.0), speed=2.0))[0] == 2 * S


def test_script_continues_over_passes_of_a_loop():
    spec = PlayedSpec(source=PLAIN, play=PlayConfig(loop=True, script=(Lost(at_s=2.5, for_s=1.0),)))
    taken = []
    for frame, truth in spec.open(CLASSES).frames():
        taken.append((frame, truth))
        if len(taken) == 30:
            break
    assert times(taken)[24:26] == [2_400_000, 3_500_000]
    assert taken[24][1] is not None
    assert taken[25][1] is None


def test_play_to_score_is_one_pass_by_day():
    night, lost = Night(at_s=1, for_s=1), Lost(at_s=2, for_s=1)
    assert PlayConfig(loop=True, speed=3, script=(night, lost)).to_score() == PlayConfig(
        speed=3, script=(lost,)
    )


def test_play_to_label_has_no_losses():
    lost, burst = Lost(at_s=2, for_s=1), Burst(at_s=4, for_s=1)
    assert PlayConfig(loop=True, speed=3, script=(lost, burst)).to_label() == PlayConfig(
        speed=3, script=(burst,)
    )


BURSTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(2, 9)), max_size=4)


@given(BURSTS, st.integers(0, 9), st.lists(st.integers(0, 100 * S), min_size=2, max_size=6))
def test_shown_us_any_script_is_monotonic(gaps, joins_s, moments):
    script, at_s = [Joins(at_s=joins_s)] if joins_s else [], joins_s
    for gap, long, factor in gaps:
        script.append(Burst(at_s=at_s + gap, for_s=long, factor=factor))
        at_s += gap + long
    moments = sorted(moments)
    shown = [script_time_us(tuple(script), moment) for moment in moments]
    assert shown == sorted(shown)
    assert all(joins_s * S <= at <= joins_s * S + moment for at, moment in zip(shown, moments, strict=True))
    faster = sum(burst[1] * (burst[2] - 1) for burst in gaps) * S
    assert script_time_us(tuple(script), 10_000 * S) == pytest.approx(joins_s * S + 10_000 * S - faster)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ((Joins(at_s=3), Joins(at_s=4)), "joins once"),
        ((Joins(at_s=3), Lost(at_s=2, for_s=9)), "before it joins at 3 s"),
        ((Lost(at_s=2, for_s=9), Lost(at_s=10, for_s=1)), "there is another at 10 s"),
        ((Night(at_s=20, for_s=1), Night(at_s=2, for_s=19)), "night at 2 s lasts 19 s"),
    ],
)
def test_script_conflicting_events_are_refused(script, said):
    with pytest.raises(ValidationError, match=said):
        PlayConfig(script=script)


def test_script_other_kinds_may_overlap():
    PlayConfig(script=(Lost(at_s=2, for_s=9), Night(at_s=3, for_s=30), Burst(at_s=1, for_s=4)))


def video(folder):
    return VideoSpec(files=(draw_video(folder / "video.avi", 16),))


def city():
    return CitySpec(seed=3, fps=10, duration_s=1.0)


def first(spec, count):
    taken = []
    for frame in spec.open(CLASSES).frames():
        taken.append(frame)
        if len(taken) == count:
            break
    return taken


def test_played_double_speed_halves_times(tmp_path):
    plain = video(tmp_path)
    fast = PlayedSpec(source=plain, play=PlayConfig(speed=2.0))
    assert fast.open(()).fps == 2 * plain.open(()).fps
    before, after = list(plain.open(()).frames()), list(fast.open(()).frames())
    assert [frame.t_us for frame, _ in after] == [frame.t_us // 2 for frame, _ in before]
    assert [frame.index for frame, _ in after] == [frame.index for frame, _ in before]


def test_length_of_a_recording_is_known_at_its_speed_and_not_of_a_loop(tmp_path):
    plain = video(tmp_path)
    length_s = plain.open(()).length_s
    assert length_s == pytest.approx(16 / plain.open(()).fps)
    twice = VideoSpec(files=plain.files * 2)
    lengths_s = [
        PlayedSpec(source=source, play=play).open(CLASSES).length_s
        for source, play in (
            (plain, PlayConfig(speed=2.0)),
            (twice, PlayConfig()),
            (plain, PlayConfig(loop=True)),
            (city(), PlayConfig()),
        )
    ]
    assert lengths_s == [length_s / 2, length_s * 2, None, None]
    with SourceProcess(twice, ()) as process:
        process.wait_open()
        assert process.length_s == length_s * 2
    with SourceProcess(city(), CLASSES) as process:
        process.wait_open()
        assert process.length_s is None


def test_played_loop_continues_without_truth():
    plain = city()
    once = list(plain.open(CLASSES).frames())
    looped = first(PlayedSpec(source=plain, play=PlayConfig(loop=True)), 2 * len(once) + 1)
    assert [frame.index for frame, _ in looped] == list(range(2 * len(once) + 1))
    assert [frame.t_us for frame, _ in looped] == [100_000 * index for index in range(2 * len(once) + 1)]
    for (again, truth), (frame, _) in zip(looped[len(once) :], once, strict=False):
        assert truth is None
        assert (again.image == frame.image).all()
        assert (again.boxes == frame.boxes).all()
    assert all(truth is not None for _, truth in looped[: len(once)])


def test_played_loop_without_frames_ends(tmp_path):
    spec = video(tmp_path)
    source = PlayedSpec(source=spec, play=PlayConfig(loop=True)).open(())
    for file in spec.files:
        content = file.read_bytes()
        file.write_bytes(content[: content.index(b"movi") + 4])
    assert list(source.frames()) == []


@pytest.mark.parametrize("damage", [b"", b"RIFF"])
def test_played_loop_of_a_file_that_is_no_video_any_more_names_it(tmp_path, damage):
    spec = video(tmp_path)
    source = PlayedSpec(source=spec, play=PlayConfig(loop=True)).open(())
    spec.files[0].write_bytes(damage)
    with pytest.raises(UserError, match=spec.files[0].name):
        list(source.frames())
