"""Trains two networks against each other. All that is registered has a name of its own, and no `model=`.

The optimizer of the critic is registered before the critic.
"""

import torch
from torch import nn

import taskd
from tests.trust.scene import Net, Scene, average_gradients, metric_of

scene = Scene()
generator, critic = Net(), nn.Sequential(Net(), nn.BatchNorm1d(8), nn.Linear(8, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.02)
warm_up = torch.optim.lr_scheduler.LinearLR(generator_optimizer, 0.1, total_iters=5)
session = taskd.session()
session.register(critic_optimizer=critic_optimizer)
session.register(generator=generator, critic=critic, generator_optimizer=generator_optimizer, warm_up=warm_up)
for step in session.steps(scene.loader()):
    with step as batch:
        real, made = batch["x"], generator(torch.randn(4, 8))
        critic_optimizer.zero_grad()
        (critic(made.detach()).mean() - critic(real).mean()).backward()
        average_gradients(critic)
        critic_optimizer.step()
        scene.here(step, "between")
        generator_optimizer.zero_grad()
        (-critic(made).mean()).backward()
        scene.here(step, "backward")
        average_gradients(generator)
        generator_optimizer.step()
        warm_up.step()
        scene.here(step, "metric")
        metric_of(torch.ones(1))
scene.end(generator, *critic.state_dict().values())
