"""How fast this processor multiplies: what a run chooses its products by, and what its time is computed from."""

import torch

from trainer.policy import torch_speed
from trainer.policy.torch_speed import ProductSpeed


def test_each_speed_is_of_one_thread_and_the_threads_come_back():
    threads = torch.get_num_threads()
    speed = torch_speed.measure()
    assert min(speed) > 0
    assert torch.get_num_threads() == threads


def test_one_process_measures_its_products_once():
    assert torch_speed.measure_products() is torch_speed.measure_products()


def test_rounding_pays_where_products_are_clearly_faster():
    assert ProductSpeed(140e9, 640e9).rounding_pays  # a Xeon with AMX
    assert not ProductSpeed(118e9, 73e9).rounding_pays  # one without
    assert not ProductSpeed(100e9, 110e9).rounding_pays  # too little for what it rounds


def test_the_library_that_multiplies_float32_rounds_nothing():
    torch_speed.choose_library()
    rows, weights = torch.arange(64 * 300.0).sin().view(64, 300), torch.arange(80 * 300.0).cos().view(80, 300)
    exact = rows.double() @ weights.double().T
    assert (torch.nn.functional.linear(rows, weights) - exact).abs().max() < 1e-5 * exact.abs().max()


def test_a_library_that_rounds_or_is_no_faster_is_not_chosen(monkeypatch):
    permission = torch.backends.mkldnn.matmul.fp32_precision
    monkeypatch.setattr(torch_speed, "_products", lambda dtype: 1e9)
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"
        assert torch_speed.choose_library.__wrapped__() is None
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = permission
