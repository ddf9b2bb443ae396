from hypothesis import given
from hypothesis import strategies as st

from slipway.core.errors import UserError


def test_an_unknown_name_offers_the_closest_with_its_command():
    error = UserError.unknown("engine", "tensorfow", ("tensorflow", "jax"), setting="train.engine")
    assert str(error).splitlines() == [
        "There is no engine 'tensorfow'.",
        "  setting:  train.engine = 'tensorfow'",
        "  allowed:  tensorflow, jax",
        "  closest:  tensorflow",
        "  fix:      --set train.engine=tensorflow",
    ]


def test_an_unknown_name_without_a_close_one_lists_what_exists():
    error = UserError.unknown("step", "xyz", ("train", "evaluate"), setting="--step")
    assert (error.allowed, error.nearest, error.fix) == ("train, evaluate", None, None)
    assert UserError.unknown("run", "xyz", ()).allowed == "none exists"


@given(value=st.integers(), least=st.integers(-100, 0), most=st.none() | st.integers(1, 100))
def test_a_number_out_of_range_offers_the_limit_that_it_crossed(value, least, most):
    error = UserError.out_of_range("Replicas", value, least, most, setting="hardware")
    within = value >= least and (most is None or value <= most)
    if not within:
        assert error.nearest is not None
        assert int(error.nearest) == min(
            (limit for limit in (least, most) if limit is not None), key=lambda x: abs(x - value)
        )
        assert f"got {value:,}" in error.message
        assert error.fix == f"--set hardware={error.nearest}"
