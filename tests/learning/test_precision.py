import torch

from ekya.learning.precision import PRODUCTS, counts_right, training_precision


def test_a_processor_trains_in_32_bits() -> None:
    assert training_precision("cpu") is torch.float32


def test_products_in_half_the_bits_are_near_those_in_all_of_them() -> None:
    assert counts_right("cpu", torch.bfloat16)


def test_a_product_that_gives_nan_or_is_off_is_found_out() -> None:
    (matmul, left, right), convolution = PRODUCTS

    def nan_in_half(one, other):
        made = matmul(one, other)
        return made * float("nan") if made.dtype is torch.bfloat16 else made

    def off_in_half(one, other):
        made = matmul(one, other)
        return made * 1.02 if made.dtype is torch.bfloat16 else made

    for wrong in (nan_in_half, off_in_half):
        assert not counts_right("cpu", torch.bfloat16, (convolution, (wrong, left, right)))
