# ruff: noqa: E501
"""Estimates from compiled programs, on a text whose sums are known."""

import pytest

from pod import cycles, topologies

V3 = topologies.GENERATIONS["v3"]
PROGRAM = """\
HloModule jit_step

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p), backend_config={"estimated_cycles":"7777"}
}

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]) parameter(0)
  %f = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/optimizer/roots/dot"}, backend_config={"estimated_cycles":"10"}
  ROOT %t = (s32[], f32[8]) tuple(%i, %f)
}

%condition (s: (s32[], f32[8])) -> pred[] {
  %limit = s32[] constant(12)
  %s = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT, backend_config={"estimated_cycles":"1"}
}

%cheap (p: f32[8]) -> f32[8] {
  ROOT %c = f32[8]{0} copy(%p), backend_config={"estimated_cycles":"5"}
}

%dear (p: f32[8]) -> f32[8] {
  %g = f32[256,4]{1,0} all-gather(%p), metadata={op_name="jit(f)/optimizer/gather/all_gather"}
  ROOT %c = f32[8]{0} copy(%p), backend_config={"estimated_cycles":"300"}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %x = f32[8]{0} fusion(%a), calls=%fused, metadata={op_name="jit(f)/jvp(ResNet)/stem"}, backend_config={"estimated_cycles":"100"}
  %y = f32[8]{0} fusion(%x), calls=%fused, metadata={op_name="jit(f)/transpose(jvp(ResNet))/stem"}, backend_config={"estimated_cycles":"200"}
  %sum = (f32[1000]{0}, bf16[10,10]{1,0}) all-reduce(%y, %z), metadata={op_name="jit(f)/all_reduce/psum"}
  %w = (s32[], f32[8]) while(%init), condition=%condition, body=%body, metadata={op_name="jit(f)/while"}
  %k = f32[8]{0} conditional(%p, %y, %y), true_computation=%cheap, false_computation=%dear, metadata={op_name="jit(f)/optimizer/cond"}
  %never = f32[8]{0} custom-call(%k), backend_config={"estimated_cycles":"1152921504606846976"}
  ROOT %r = f32[8]{0} copy(%k), backend_config={"estimated_cycles":"2"}
}
"""


def test_cycles_are_summed_by_part_and_loops_are_multiplied_by_their_trips():
    result = cycles.estimate(PROGRAM, V3)
    expected = {"forward": 100, "backward": 200, "roots": 120, "optimizer": 300, "other": 12 + 2}
    seconds = result["compute_seconds_by_part"]
    assert {k: round(v * 940e6) for k, v in seconds.items()} == expected
    assert result["estimated_cycles"] == sum(expected.values())
    assert result["compute_seconds"] == pytest.approx(sum(expected.values()) / 940e6)
    assert result["loops_counted_once"] == 0


def test_collectives_are_counted_in_bytes_and_by_the_link():
    result = cycles.estimate(PROGRAM, V3)
    assert result["collectives"] == {
        "all-gather": {"count": 1, "bytes": 4096},
        "all-reduce": {"count": 1, "bytes": 4200},
    }
    assert result["link_seconds_by_part"] == {
        "all_reduce": pytest.approx(2 * 4200 / 164e9),
        "gather": pytest.approx(4096 / 164e9),
    }
    assert result["link_seconds"] == pytest.approx((2 * 4200 + 4096) / 164e9)


def test_the_compilers_own_trip_count_comes_first():
    text = PROGRAM.replace(
        "body=%body,", 'body=%body, backend_config={"known_trip_count":{"n":"3"}},'
    )
    assert cycles.estimate(text, V3)["compute_seconds_by_part"]["roots"] * 940e6 == pytest.approx(
        30
    )


def test_a_loop_whose_end_is_not_in_the_text_counts_once_and_is_reported():
    text = PROGRAM.replace("compare(%i, %limit)", "compare(%error, %tolerance)")
    result = cycles.estimate(text, V3)
    assert result["loops_counted_once"] == 1
    assert result["compute_seconds_by_part"]["roots"] * 940e6 == pytest.approx(10)


def test_results_of_asynchronous_gathers_count_without_their_operands():
    line = "%g = (f32[4]{0}, f32[1024]{0}) all-gather-start(%p), metadata={}"
    text = PROGRAM.replace("%never = ", f"{line}\n  %never = ")
    assert cycles.estimate(text, V3)["collectives"]["all-gather"] == {"count": 2, "bytes": 8192}


@pytest.mark.parametrize(
    ("name", "n_devices", "accelerator"),
    [
        ("v2:16x16", 512, "v2-512"),
        ("v3:16x8", 256, "v3-256"),
        ("v4:4x4x8", 256, "v4-256"),
        ("v5e:16x16", 256, "v5litepod-256"),
        ("v5p:4x4x8", 128, "v5p-256"),
        ("v6e:2x2", 4, "v6e-4"),
    ],
)
def test_topologies_have_as_many_devices_as_in_the_compiler(name, n_devices, accelerator):
    """The counts are those of jax.experimental.topologies."""
    topology = topologies.parse(name)
    assert (topology.n_devices, topology.accelerator_type) == (n_devices, accelerator)


@pytest.mark.parametrize("name", ["v9:2x2", "v3", "v3:0x2", "v3:2x", "v3:16X8", ""])
def test_other_topologies_are_refused(name):
    with pytest.raises(ValueError, match=f"topology={name}: needs a generation"):
        topologies.parse(name)


def test_the_interconnect_of_v3_is_the_assumed_one():
    """4 links of 656 Gbit/s at 50 %: 164 GB/s."""
    assert V3.interconnect_bytes_per_second == pytest.approx(164e9)
