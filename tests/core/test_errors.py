import errno

from slipway.core.errors import UserError, system_error


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


def test_a_long_value_is_shortened_wherever_it_is_named():
    value = "a" * 200_000
    error = UserError(f"There is no run {value} in runs/.", setting="RUN", value=value, fix=f"slipway run\n{value}")
    for text in (str(error), *(str(part) for part in error.as_dict().values())):
        assert len(text) < 1000
    assert error.message.startswith("There is no run aaa")
    assert error.message.endswith("aaa in runs/.")
    assert "(200000 characters)" in str(error)
    assert len(str(UserError("No.", setting="data", value=list(range(50_000))))) < 1000


def test_shared_memory_that_cannot_be_written_is_mounted_not_moved():
    error = system_error(PermissionError(errno.EACCES, "Permission denied", "/dev/shm/pym-1-x"))
    assert error is not None
    assert "mount -t tmpfs" in (error.fix or "")
    assert "another folder" not in str(error)
