"""Small TensorFlow jobs for test_agent.py; like agent_jobs.py."""
import hashlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import numpy as np
import tensorflow as tf


def data(batches=6):
    rng = np.random.default_rng(1)
    x, y = rng.random((batches * 8, 4), dtype="float32"), rng.integers(0, 3, batches * 8)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=2).batch(8)


def model():
    tf.keras.utils.set_random_seed(3)
    made = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dropout(0.2),
                                tf.keras.layers.Dense(3)])
    made.build((None, 4))
    return made


LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def digest(made):
    h = hashlib.sha256()
    for w in made.get_weights():
        h.update(w.tobytes())
    print("params", h.hexdigest()[:16])


def fit():
    made = model()
    made.compile(tf.keras.optimizers.SGD(0.1), LOSS)
    history = made.fit(data(), epochs=2, verbose=0, validation_data=data(2))
    print([float(v).hex() for v in history.history["loss"]])
    digest(made)


def fit_half():
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    fit()


def fit_generator():
    """Batches made by Python code in TensorFlow's threads."""
    made = model()
    made.compile(tf.keras.optimizers.SGD(0.1), LOSS)

    def batches():
        rng = np.random.default_rng(1)
        for _ in range(6):
            yield rng.random((8, 4), dtype="float32"), rng.integers(0, 3, 8)

    signature = (tf.TensorSpec((8, 4), tf.float32), tf.TensorSpec((8,), tf.int64))
    made.fit(tf.data.Dataset.from_generator(batches, output_signature=signature), verbose=0)
    digest(made)


def fit_pipeline():
    """A pipeline with work of its own, which the compiled step waits for inside."""
    made = model()
    made.compile(tf.keras.optimizers.SGD(0.1), LOSS)

    def sample(i):
        x = tf.random.stateless_uniform((256, 256), (i, 7))
        for _ in range(6):
            x = x @ x / 256
        return x[0, :4], i % 3

    batches = tf.data.Dataset.range(480).map(sample)
    made.fit(batches.batch(8), verbose=0)
    digest(made)


def custom(compiled=""):
    made, optimizer = model(), tf.keras.optimizers.Adam()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = LOSS(y, made(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, made.trainable_variables),
                                      made.trainable_variables))
        return loss

    if compiled:
        step = tf.function(step)
    for x, y in data():
        print("loss", float(step(x, y)).hex())
    digest(made)


def session():
    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as s:
        x = tf1.placeholder(tf.float32, (None, 4))
        w = tf1.get_variable("w", initializer=tf.ones((4, 1)))
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        s.run(tf1.global_variables_initializer())
        rng = np.random.default_rng(1)
        for _ in range(5):
            _, value = s.run([train, loss], feed_dict={x: rng.random((8, 4), dtype="float32")})
            print("loss", float(value).hex())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
