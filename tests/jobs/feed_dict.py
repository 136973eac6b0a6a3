"""A TensorFlow 1 style loop: NumPy batches enter a session through feed_dict, copied at each step.

--fixed keeps the data in the graph and feeds an index.
"""

import numpy as np
import tensorflow.compat.v1 as tf

import kit

tf.disable_eager_execution()


def main():
    opts = kit.options()
    data = np.random.default_rng(0).random((512, 256, 256, 3), dtype=np.float32)
    index = tf.placeholder(tf.int32, [])
    if opts.fixed:
        holder = tf.placeholder(tf.float32, data.shape)
        store = tf.Variable(holder, trainable=False)
        x = tf.slice(store, [index, 0, 0, 0], [64, -1, -1, -1])
    else:
        x = tf.placeholder(tf.float32, [64, 256, 256, 3])
    small = tf.reduce_mean(x[:, ::8, ::8], axis=(1, 2))
    weight = tf.Variable(tf.zeros([3, 10]))
    loss = tf.reduce_mean(tf.square(small @ weight - 1))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    meter = kit.Meter(opts)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer(), {holder: data} if opts.fixed else None)
        step = 0
        while True:
            start = (step * 64) % 448
            if opts.fixed:
                session.run(train, {index: start})
            else:
                batch = data[start : start + 64] * np.float32(0.99)  # CAUSE
                session.run(train, feed_dict={x: batch})  # CAUSE
            step += 1
            if meter.step():
                break
    meter.write()


if __name__ == "__main__":
    main()
