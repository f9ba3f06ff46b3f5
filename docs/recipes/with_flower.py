"""Flower: a mod that reads what a client sends back, against the weights that it was sent.

A mod that is listed before the app's own, as `LocalDpMod`, sees what leaves the client; one after it what is private.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from bench import api

digits = load_digits()
images, classes = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
known = {"public": images[1000:], "public_labels": classes[1000:]}  # what anyone may know


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))


def read_update(message: Message, context: Context, call_next) -> Message:
    reply = call_next(message, context)
    weights = api.from_flower(message.content["arrays"], reply.content["arrays"], network())
    local = api.SGD(lr=0.1, batch=2, steps=2)  # how the client trains
    reading = api.reading(**weights, local=local, shape=(1, 8, 8), classes=10, **known)
    api.save_reading("reading.npz", reading)  # bench attack --reading reading.npz …
    print(api.check(reading, images[:4], classes[:4]).line)  # on a client of your own, who has the truth
    found = api.attack(reading, "map", evaluations=1200)
    print("leaked:", api.score(found, images[:4], classes[:4], **known).summary.asr.value)
    return reply


app = ClientApp(mods=[read_update])


@app.train()
def train(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for at in (0, 2):
        optimizer.zero_grad()
        cross_entropy(model(images[at : at + 2]), classes[at : at + 2]).backward()
        optimizer.step()
    return Message(content=RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)
