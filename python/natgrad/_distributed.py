"""Ranks: torch.distributed behind the library's table of callbacks."""


def transport(group):
    return None
