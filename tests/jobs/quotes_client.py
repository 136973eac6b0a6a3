"""Asks a server for each batch, by asyncio, and trains on the answer. A quote takes the server 25 ms.

Each is asked for when the one before has been used. --fixed keeps eight questions under way.
"""

import asyncio
import multiprocessing
import socket

import torch
from torch import nn

import kit

ANSWER_S = 0.025
WIDTH = 96


async def serve(listener):
    async def client(reader, writer):
        async def answer(line):
            await asyncio.sleep(ANSWER_S)
            writer.write(line)

        pending = []
        while line := await reader.readline():
            pending = [task for task in pending if not task.done()]
            pending.append(asyncio.create_task(answer(line)))
        writer.close()

    server = await asyncio.start_server(client, sock=listener)
    await server.serve_forever()


async def quote(reader):
    line = await reader.readline()  # CAUSE
    return torch.randn(128, WIDTH, generator=torch.Generator().manual_seed(int(line)))


async def quotes(port, ahead):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = 0
    for given in range(1 << 30):
        while asked <= given + ahead:
            writer.write(b"%d\n" % asked)
            asked += 1
        yield await quote(reader)


async def train(opts, port):
    model = nn.Sequential(nn.Linear(WIDTH, 1024), nn.Tanh(), nn.Linear(1024, 512), nn.Tanh(), nn.Linear(512, 1))
    rmsprop = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    meter = kit.Meter(opts)
    async for batch in quotes(port, 8 if opts.fixed else 0):
        loss = nn.functional.mse_loss(model(batch).squeeze(1), batch.mean(1))
        rmsprop.zero_grad()
        loss.backward()
        rmsprop.step()
        if meter.step():
            break
    meter.write()


def main():
    opts = kit.options()
    torch.set_num_threads(1)
    listener = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(serve(listener)), daemon=True)
    server.start()
    asyncio.run(train(opts, listener.getsockname()[1]))
    server.terminate()


if __name__ == "__main__":
    main()
