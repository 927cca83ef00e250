"""Integer instructions of PTX carried out one by one on the CPU, over as many registers at once as a tensor holds."""

from __future__ import annotations

import re

import torch

MASK = 0xFFFFFFFF
OR_OF_AND = "0xea"  # (a & b) | c


def float16s(register: torch.Tensor) -> torch.Tensor:
    """The two numbers of 32-bit registers (int64 [N]) as float64 [N, 2], the lower half first."""
    halves = torch.stack((register & 0xFFFF, register >> 16), 1)
    return halves.to(torch.uint16).view(torch.float16).double()


def bfloat16s(register: torch.Tensor) -> torch.Tensor:
    """The same of bfloat16."""
    halves = torch.stack((register & 0xFFFF, register >> 16), 1)
    return (halves << 16).to(torch.int32).view(torch.float32).double()


def registers(numbers: torch.Tensor) -> torch.Tensor:
    """The other way round, of numbers that bfloat16 holds exactly."""
    halves = numbers.float().view(torch.int32).long() >> 16 & 0xFFFF
    assert torch.equal(bfloat16s(halves[:, 0] | halves[:, 1] << 16), numbers)
    return halves[:, 0] | halves[:, 1] << 16


def carry_out(code: str, *words: torch.Tensor) -> torch.Tensor:
    """Runs a block of PTX on registers `words` ($1, $2, ...) and gives what it leaves in $0."""
    return carry_out_all(code, 1, *words)[0]


def carry_out_all(code: str, results: int, *words: torch.Tensor) -> list[torch.Tensor]:
    """The same of blocks with so many results, which come before `words`."""
    held = {f"${place}": word for place, word in enumerate(words, results)}

    def value(name: str) -> torch.Tensor:
        return torch.full_like(words[0], int(name, 0)) if name[0].isdigit() else held[name]

    for statement in re.sub(r"\.reg \.b\d+ [^;]*;", "", code.strip("{} ")).split(";"):
        if not statement.strip():
            continue
        operation, rest = statement.split(maxsplit=1)
        if "{" in rest:  # a register's two halves
            (low, high), whole = re.findall(r"\w+", rest.split("}")[0]), value(rest.split(",")[-1].strip())
            held[low], held[high] = whole & 0xFFFF, whole >> 16
            continue
        target, *given = (part.strip() for part in rest.split(","))
        if operation == "lop3.b32":
            assert given.pop() == OR_OF_AND
            a, b, c = map(value, given)
            held[target] = a & b | c
        elif operation == "fma.rn.bf16x2":
            a, b, c = (bfloat16s(value(name)) for name in given)
            held[target] = registers(a * b + c)
        elif operation == "prmt.b32":
            a, b, picks = map(value, given)
            held[target] = permuted(a | b << 32, picks)
        elif operation == "cvt.f32.f16":
            held[target] = float16s(value(given[0]))[:, 0]
        elif operation == "mov.b32":
            held[target] = value(given[0])
        else:
            compute = {"shl.b32": torch.bitwise_left_shift, "shr.b32": torch.bitwise_right_shift}
            compute |= {"and.b32": torch.bitwise_and}
            held[target] = compute[operation](*map(value, given)) & MASK
    return [held[f"${place}"] for place in range(results)]


def permuted(eight: torch.Tensor, picks: torch.Tensor) -> torch.Tensor:
    """Four of eight bytes, named by the lower three bits of four bits each; the highest would copy signs."""
    made = torch.zeros_like(eight)
    for place in range(4):
        pick = picks >> 4 * place & 15
        assert int(pick.max()) < 8
        made |= (eight >> 8 * pick & 0xFF) << 8 * place
    return made
