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
