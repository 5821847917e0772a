"""A router of TorchTitan's experts that sends every token to the first one, named in ``override.imports``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torchtitan.config.override import derive, override
from torchtitan.models.common.moe import TokenChoiceTopKRouter


class OneExpertRouter(TokenChoiceTopKRouter):
    @dataclass(kw_only=True, slots=True)
    class Config(TokenChoiceTopKRouter.Config):
        pass

    def forward(
        self, x_BLD: torch.Tensor, expert_bias_E: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        bias = torch.zeros(self.num_experts, device=x_BLD.device)
        bias[0] = 1e6
        return super().forward(x_BLD, bias)


@override(target=TokenChoiceTopKRouter.Config, exact=True, description="all tokens to one expert")
def one_expert(config: TokenChoiceTopKRouter.Config) -> OneExpertRouter.Config:
    return derive(config, OneExpertRouter.Config)
