"""Sentences out of a gradient: a text classifier's update gives its batch away, word by word."""

import torch
from torch.nn.functional import cross_entropy

from bench import api

public = ["the waiter was kind .", "what a dull film .", "the soup was cold and salty .", "my boss liked the hotel ."]
texts = ["the film was kind of dull .", "my soup was cold .", "what a waiter , the boss liked the film ."]
words = ["", *sorted({word for text in [*public, *texts] for word in text.split()})]
numbers = {word: number for number, word in enumerate(words)}


def ids(sentences, positions=12):
    rows = [[numbers[word] for word in sentence.split()] for sentence in sentences]
    return torch.tensor([row + [0] * (positions - len(row)) for row in rows])


# a module that takes ids, 0 behind a text's end; any classifier with linear query, key and value layers
x, y, known = ids(texts), [0, 0, 1], {"public": ids(public)}
torch.manual_seed(0)
model = api.build("tiny-transformer", shape=(12,), classes=2, params={"tokens": len(words), "width": 64})
cross_entropy(model(x), torch.tensor(y)).backward()
gradients = {name: parameter.grad for name, parameter in model.named_parameters()}

reading = api.reading(gradients, model=model, shape=(12,), classes=2, batch=3, kind="text", **known)
print(api.check(reading, x, y).line)
reconstruction = api.attack(reading, "token-span")
scores = api.score(reconstruction, x, y, **known)
print("word for word:", scores.summary.asr_strict.value)
for text in sorted(" ".join(words[int(n)] for n in row if n) for row in reconstruction.inputs[0]):
    print(text)
