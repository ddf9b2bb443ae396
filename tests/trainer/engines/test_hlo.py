"""The bytes and kernels of programs as XLA's compilers print them."""

from __future__ import annotations

import pytest

from slipway.trainer.engines.jax import hlo

PROGRAM = """HloModule jit_many, is_scheduled=true

%fused (param_0: f32[4,8], param_1: f32[8]) -> f32[4,8] {
  %param_0 = f32[4,8]{1,0} parameter(0)
  %param_1 = f32[8]{0} parameter(1)
  %broadcast = f32[4,8]{1,0} broadcast(%param_1), dimensions={1}
  ROOT %sum = f32[4,8]{1,0} add(%param_0, %broadcast)
}

%inner_body (state: (f32[4,8])) -> (f32[4,8]) {
  %state = (f32[4,8]{1,0}) parameter(0)
  %value = f32[4,8]{1,0} get-tuple-element(%state), index=0
  %twice = f32[4,8]{1,0} multiply(%value, %value)
  ROOT %next = (f32[4,8]{1,0}) tuple(%twice)
}

%inner_condition (state.1: (f32[4,8])) -> pred[] {
  %state.1 = (f32[4,8]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

%body (arg: (f32[4,8], f32[8])) -> (f32[4,8], f32[8]) {
  %arg = (f32[4,8]{1,0}, f32[8]{0}) parameter(0)
  %x = f32[4,8]{1,0} get-tuple-element(%arg), index=0
  %b = f32[8]{0} get-tuple-element(%arg), index=1
  %fusion = f32[4,8]{1,0} fusion(%x, %b), kind=kLoop, calls=%fused
  %slice = f32[1,8]{1,0} dynamic-slice(%fusion, %b), dynamic_slice_sizes={1,8}
  %packed = (f32[4,8]{1,0}) tuple(%fusion)
  %loop = (f32[4,8]{1,0}) while(%packed), condition=%inner_condition, body=%inner_body, BACKEND
  %y = f32[4,8]{1,0} get-tuple-element(%loop), index=0
  ROOT %out = (f32[4,8]{1,0}, f32[8]{0}) tuple(%y, %b)
}

%condition (arg.1: (f32[4,8], f32[8])) -> pred[] {
  %arg.1 = (f32[4,8]{1,0}, f32[8]{0}) parameter(0)
  ROOT %going = pred[] constant(true)
}

ENTRY %main.1 (in0: f32[4,8], in1: f32[8]) -> f32[4,8] {
  %in0 = f32[4,8]{1,0} parameter(0)
  %in1 = f32[8]{0} parameter(1)
  %start = (f32[4,8]{1,0}, f32[8]{0}) tuple(%in0, %in1)
  %steps = (f32[4,8]{1,0}, f32[8]{0}) while(%start), condition=%condition, body=%body, STEPS
  ROOT %result = f32[4,8]{1,0} get-tuple-element(%steps), index=0
}
"""
PROGRAM = PROGRAM.replace("STEPS", 'backend_config={"known_trip_count":{"n":"50"}}')
FUSION, SLICE, TWICE = 4 * (32 + 8 + 32), 2 * 4 * 8, 4 * (3 * 32)


def test_a_step_of_the_outer_loop_and_all_of_an_inner_one() -> None:
    """The fusion reads and writes its operands and result, not what it computes inside."""
    inner = 'backend_config={"known_trip_count":{"n":"5"}}'
    assert hlo.traffic(PROGRAM.replace("BACKEND", inner)) == (FUSION + SLICE + 5 * TWICE, 2 + 5)
    assert hlo.traffic(PROGRAM.replace("BACKEND", "backend_config={}")) == (FUSION + SLICE + TWICE, 3)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[2,3]{1,0}", 24), ("bf16[128]{0:T(256)}", 256), ("pred[]", 1), ("(f32[2]{0}, s8[3]{0})", 11),
        ("f64[2]", 16), ("u64[]", 8), ("f8e4m3fn[16]", 16), ("s4[8]", 8), ("()", 0), ("s32[0]{0}", 0),
    ],
)  # fmt: skip
def test_sizes(shape: str, size: int) -> None:
    assert hlo.size(shape) == size
