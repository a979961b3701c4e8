"""CUDA_VISIBLE_DEVICES, entry by entry, as the CUDA programming guide has it."""

import pytest

from everywatt.sensors.nvidia.gpu_select import Gpu, Mig, select

MIGS = (Mig("MIG-aaaa1111-0000", 1, 0), Mig("MIG-aaaa2222-0000", 2, 0))
FOUR = [
    Gpu(0, "GPU-8932f937-d72c", "A100", "0000:10:00.0"),
    Gpu(1, "GPU-8932aaaa-1111", "A100", "0000:20:00.0"),
    Gpu(2, "GPU-77777777-2222", "A100", "0000:30:00.0", MIGS),
    Gpu(3, "GPU-99999999-3333", "A100", "0000:40:00.0"),
]


@pytest.mark.parametrize(
    ("mask", "gpus", "migs"),
    [
        (None, (0, 1, 2, 3), ()),
        ("2,3", (2, 3), ()),
        ("3,1", (3, 1), ()),
        (" 1 , 0", (1, 0), ()),
        ("", (), ()),
        ("-1", (), ()),
        ("0,2,-1,1", (0, 2), ()),
        ("0,9,1", (0,), ()),
        ("none", (), ()),
        ("1gpu,0x", (1, 0), ()),
        ("0,0", (), ()),
        ("GPU-77777777-2222", (2,), ()),
        ("GPU-7", (2,), ()),
        ("gpu-99999999", (3,), ()),
        ("GPU-8932", (), ()),
        ("GPU-8932a", (1,), ()),
        ("GPU-7,GPU-77777777-2222", (), ()),
        ("GPU-7,1", (2,), ()),
        ("0,GPU-7", (0,), ()),
        ("MIG-aaaa2222-0000", (2,), ("MIG-aaaa2222-0000",)),
        ("MIG-aaaa1111-0000,MIG-aaaa2222-0000", (2,), ("MIG-aaaa1111-0000", "MIG-aaaa2222-0000")),
        ("MIG-GPU-77777777-2222/1/0", (2,), ("MIG-aaaa1111-0000",)),
        ("MIG-GPU-77777777-2222/5/0", (), ()),
    ],
)
def test_a_mask_selects_what_cuda_would(mask, gpus, migs):
    chosen = select(mask, FOUR)
    assert (chosen.gpus, chosen.migs) == (gpus, migs)


def test_indices_count_in_pci_order():
    swapped = [Gpu(0, "GPU-b", "A100", "0000:90:00.0"), Gpu(1, "GPU-a", "A100", "0000:10:00.0")]
    assert select("0", swapped, "PCI_BUS_ID").gpus == (1,)


def test_an_assumed_order_is_said_where_cards_differ():
    mixed = [Gpu(0, "GPU-a", "T4", "0000:10:00.0"), Gpu(1, "GPU-b", "A100", "0000:20:00.0")]
    assert "CUDA_DEVICE_ORDER" in select("0", mixed).note
    assert select("0", mixed, "PCI_BUS_ID").note == ""
    assert select("GPU-b", mixed).note == ""


def test_the_entry_that_ends_the_list_is_named():
    assert "'9'" in select("0,9,1", FOUR).note
    assert "twice" in select("0,0", FOUR).note
    assert select("-1", FOUR).note == ""
