"""KernelSpec: schema, binding of tensors, forms of a weight."""

from __future__ import annotations

import pytest
import torch

from trnrt_kernels.contract import (
    Argument,
    DType,
    KernelSpec,
    Limit,
    Phase,
    Result,
    Role,
    WeightForm,
)

SPEC = KernelSpec(
    name="toy",
    phase=Phase.DECODE,
    arguments=(
        Argument("x_BD", ("b", "D"), DType.ACTIVATION, Role.STREAM),
        Argument("slots_B", ("b",), DType.INT64, Role.INPUT),
        Argument("proj", ("2*D", "D"), DType.ACTIVATION, Role.WEIGHT, is_quantisable=True),
        Argument("state", ("S", "D"), DType.FLOAT32, Role.CACHE),
    ),
    constants=(("eps", float), ("width", int), ("group_name", str)),
    results=(
        Result("y_BD", ("b", "2*D"), DType.ACTIVATION),
        Result("picked_BX", ("b", "width/3"), DType.INT64),
    ),
    limits={"D": Limit(least=4, most=64, multiple_of=4)},
)


def tensors(**changes: torch.Tensor) -> list[torch.Tensor]:
    made = {
        "x_BD": torch.zeros(3, 8),
        "slots_B": torch.zeros(3, dtype=torch.int64),
        "proj": torch.zeros(16, 8),
        "state": torch.zeros(5, 8),
    }
    return list((made | changes).values())


def test_schema_marks_what_is_mutated() -> None:
    assert SPEC.schema() == (
        "(Tensor x_BD, Tensor slots_B, Tensor proj, Tensor(a0!) state, "
        "float eps, int width, str group_name) -> (Tensor, Tensor)"
    )
    assert SPEC.qualname == "trnrt_decode::toy"
    assert SPEC.mutated == ("state",)
    assert SPEC.names(Role.WEIGHT) == ("proj",)


def test_bind_returns_sizes_and_shapes_of_results() -> None:
    sizes = SPEC.bind(tensors())
    assert sizes == {"b": 3, "D": 8, "S": 5}
    assert SPEC.result_shapes(sizes | {"width": 7}) == [(3, 16), (3, 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"proj": torch.zeros(15, 8)}, r"proj is \[15, 8\], expected \[16, 8\] = \[2\*D, D\]"),
        ({"slots_B": torch.zeros(4, dtype=torch.int64)}, r"slots_B is \[4\], expected \[3\]"),
        ({"slots_B": torch.zeros(3, 1, dtype=torch.int64)}, "slots_B has 2 dimensions"),
        ({"slots_B": torch.zeros(3)}, "slots_B is float32, expected int64"),
        ({"proj": torch.zeros(16, 8).bfloat16()}, "proj is bfloat16, expected float32"),
        ({"state": torch.zeros(5, 8).double()}, "state is float64, expected float32"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    changes: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SPEC.bind(tensors(**changes))


def test_number_of_tensors_and_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="takes 4 tensors, got 3"):
        SPEC.bind(tensors()[:3])
    six = {"x_BD": torch.zeros(3, 6), "proj": torch.zeros(12, 6), "state": torch.zeros(5, 6)}
    with pytest.raises(ValueError, match="D = 6 is outside"):
        SPEC.bind(tensors(**six))


def test_codes_form_adds_a_scale_behind_each_quantisable_weight() -> None:
    names = [argument.name for argument in SPEC.arguments_in(WeightForm.CODES)]
    assert names == ["x_BD", "slots_B", "proj", "proj_scale", "state"]
    scale = SPEC.arguments_in(WeightForm.CODES)[3]
    assert scale.dims == ("2*D/128", "D/128")
    assert SPEC.arguments_in(WeightForm.TENSOR) == SPEC.arguments
