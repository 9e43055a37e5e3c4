"""What tools/keras_layers.py runs: layers of Keras as one writes them, and those that it leaves out, with the reason.

A line is a layer and, behind "<-", what it is called with: x and y are results of two layers before it, m is a mask of steps,
ids are whole numbers; x alone where nothing is said. "~" begins a line whose random numbers tfuse draws by a rule of its own:
stock and tfuse are only asked for finite numbers there. The first line of each layer also runs in plain float16 and bfloat16.
"""

LAYERS = {
    "vector": """
        Dense(5)
        Dense(5, activation="relu", use_bias=False)
        Dense(5, activation="softmax")
        Dense(5, activation="gelu", kernel_regularizer="l2")
        EinsumDense("ab,bc->ac", 5, bias_axes="c", activation="silu")
        Activation("tanh")
        Activation("sparse_plus")
        Activation("glu")
        ELU()
        LeakyReLU()
        PReLU()
        ReLU(6.0, negative_slope=0.1, threshold=0.2)
        Softmax()
        ActivityRegularization(0.01, 0.01)
        BatchNormalization()
        BatchNormalization(renorm=True)
        BatchNormalization(center=False, scale=False)
        LayerNormalization()
        RMSNormalization()
        UnitNormalization()
        GroupNormalization(4)
        SpectralNormalization(Dense(5))
        ~ Dropout(0.5)
        Dropout(0.0)
        AlphaDropout(0.2)
        GaussianDropout(0.2)
        GaussianNoise(0.2)
        Identity()
        Masking()
        Rescaling(0.5, 1.0)
        Normalization(mean=0.5, variance=2.0)
        RepeatVector(3)
        Reshape((2, 4))
        Flatten()
        Lambda(lambda x: keras.ops.square(x))
        Add() <- [x, y]
        Subtract() <- [x, y]
        Multiply() <- [x, y]
        Average() <- [x, y]
        Maximum() <- [x, y]
        Minimum() <- [x, y]
        Concatenate() <- [x, y]
        Dot(1) <- [x, y]
        Dot(1, normalize=True) <- [x, y]
        Pipeline([Dense(5), ReLU()])
    """,
    "sequence": """
        Dense(5, activation="gelu")
        EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")
        Embedding(16, 8) <- ids
        Embedding(16, 8, mask_zero=True) <- ids
        ReversibleEmbedding(16, 8) <- ids
        LSTM(4)
        LSTM(4, return_sequences=True)
        LSTM(4, return_sequences=True, go_backwards=True, unroll=True)
        LSTM(4, activation="relu", recurrent_activation="hard_sigmoid", use_bias=False)
        LSTM(4, return_sequences=True) <- x, mask=m
        ~ LSTM(4, dropout=0.3, recurrent_dropout=0.3)
        GRU(4)
        GRU(4, return_sequences=True)
        GRU(4, reset_after=False, return_sequences=True)
        GRU(4, go_backwards=True) <- x, mask=m
        ~ GRU(4, dropout=0.3, recurrent_dropout=0.3)
        SimpleRNN(4)
        SimpleRNN(4, return_sequences=True, activation="relu") <- x, mask=m
        SimpleRNN(4, recurrent_dropout=0.3)
        RNN(LSTMCell(4))
        RNN(GRUCell(4), return_sequences=True)
        RNN(SimpleRNNCell(4))
        RNN(StackedRNNCells([LSTMCell(4), GRUCell(3)]))
        Bidirectional(LSTM(4))
        Bidirectional(GRU(4, return_sequences=True), merge_mode="sum") <- x, mask=m
        TimeDistributed(Dense(5))
        TimeDistributed(Dense(5)) <- x, mask=m
        Attention() <- [x, y]
        Attention(use_scale=True, score_mode="concat") <- [x, y], mask=[m, m]
        Attention() <- [x, y], use_causal_mask=True
        AdditiveAttention() <- [x, y]
        AdditiveAttention() <- [x, y], mask=[m, m]
        MultiHeadAttention(2, 4) <- x, y
        MultiHeadAttention(1, 8, use_bias=False) <- x, x
        MultiHeadAttention(2, 4) <- x, x, use_causal_mask=True
        MultiHeadAttention(2, 4, value_dim=3, output_shape=5) <- x, y, query_mask=m, value_mask=m
        ~ MultiHeadAttention(2, 4, dropout=0.3) <- x, x
        GroupQueryAttention(4, 4, 2) <- x, y
        GroupQueryAttention(4, 4, 2) <- x, x, use_causal_mask=True
        LayerNormalization()
        LayerNormalization(axis=(1, 2))
        LayerNormalization(axis=1)
        RMSNormalization(axis=-1)
        BatchNormalization() <- x, mask=m
        GroupNormalization(-1)
        Softmax()
        Softmax(axis=1)
        Softmax() <- x, mask=keras.ops.expand_dims(m, -1)
        PReLU(shared_axes=[1])
        Masking()
        Permute((2, 1))
        ~ Dropout(0.5)
        Dropout(0.5, noise_shape=(None, 1, 8))
        SpatialDropout1D(0.3)
        Dot((2, 2)) <- [x, y]
        Concatenate(axis=1) <- [x, y]
        STFTSpectrogram(frame_length=4, frame_step=2, fft_length=4) <- Permute((2, 1))(x)[..., None][:, 0]
        MelSpectrogram(fft_length=4, sequence_stride=2, num_mel_bins=3, sampling_rate=100, max_freq=50) <- x[:, :, 0]
    """,
    "image1": """
        Conv1D(5, 3)
        Conv1D(5, 3, padding="causal", dilation_rate=2, activation="relu")
        Conv1D(6, 3, strides=2, padding="same", groups=2)
        Conv1D(5, 3, data_format="channels_first") <- Permute((2, 1))(x)
        Conv1DTranspose(5, 3, strides=2)
        SeparableConv1D(5, 3, depth_multiplier=2)
        DepthwiseConv1D(3, padding="same", activation="relu")
        MaxPooling1D(2)
        MaxPooling1D(3, strides=2, padding="same")
        AveragePooling1D(2)
        AveragePooling1D(3, strides=1, padding="same")
        GlobalAveragePooling1D()
        GlobalAveragePooling1D() <- x, mask=m
        GlobalMaxPooling1D(keepdims=True)
        AdaptiveAveragePooling1D(3)
        AdaptiveMaxPooling1D(3)
        UpSampling1D(2)
        ZeroPadding1D((1, 2))
        Cropping1D((1, 2))
        BatchNormalization()
        ConvLSTM1D(3, 3) <- keras.ops.expand_dims(x, 2)
    """,
    "image2": """
        Conv2D(5, 3)
        Conv2D(5, 3, strides=2, padding="same", activation="relu", use_bias=False)
        Conv2D(6, (1, 3), dilation_rate=2, groups=2)
        Conv2D(5, 3, activation="gelu", data_format="channels_first") <- Permute((3, 1, 2))(x)
        Conv2D(5, 1)
        Conv2DTranspose(5, 3)
        Conv2DTranspose(5, 4, strides=2, padding="same", activation="relu")
        Conv2DTranspose(5, 3, strides=2, output_padding=1, use_bias=False)
        SeparableConv2D(5, 3)
        SeparableConv2D(5, 3, strides=2, padding="same", depth_multiplier=2, activation="relu")
        DepthwiseConv2D(3)
        DepthwiseConv2D(3, padding="same", depth_multiplier=2, activation="silu")
        DepthwiseConv2D(3, dilation_rate=2)
        MaxPooling2D()
        MaxPooling2D(3, strides=2, padding="same")
        MaxPooling2D(data_format="channels_first")
        AveragePooling2D()
        AveragePooling2D((2, 3), strides=1, padding="same")
        GlobalAveragePooling2D()
        GlobalAveragePooling2D(keepdims=True)
        GlobalMaxPooling2D()
        AdaptiveAveragePooling2D(3)
        AdaptiveMaxPooling2D(3)
        UpSampling2D()
        UpSampling2D((2, 3), interpolation="nearest")
        UpSampling2D(interpolation="bilinear")
        UpSampling2D(interpolation="bicubic")
        UpSampling2D(interpolation="lanczos3")
        UpSampling2D(interpolation="bilinear", data_format="channels_first")
        Resizing(5, 9)
        Resizing(5, 9, interpolation="nearest")
        Resizing(5, 9, interpolation="bicubic", antialias=True)
        Resizing(4, 9, crop_to_aspect_ratio=True)
        Resizing(4, 9, pad_to_aspect_ratio=True)
        ZeroPadding2D(((1, 2), (0, 1)))
        Cropping2D(((1, 2), (0, 1)))
        CenterCrop(4, 5)
        RandomCrop(4, 5)
        Rescaling(0.5)
        Normalization(mean=0.5, variance=2.0)
        BatchNormalization()
        BatchNormalization(axis=1)
        BatchNormalization(trainable=False)
        LayerNormalization()
        GroupNormalization(2)
        GroupNormalization(2, axis=1)
        SpectralNormalization(Conv2D(5, 3))
        ReLU()
        PReLU(shared_axes=[1, 2])
        Softmax(axis=(1, 2))
        Add() <- [BatchNormalization()(x), y]
        Multiply() <- [x, GlobalAveragePooling2D(keepdims=True)(y)]
        Concatenate() <- [x, y]
        SpatialDropout2D(0.3)
        Dropout(0.5, noise_shape=(None, 1, 1, 1))
        Flatten()
        TimeDistributed(Dense(5))
        ConvLSTM2D(3, 3) <- keras.ops.expand_dims(x, 1)
    """,
    "image3": """
        Conv3D(5, 3)
        Conv3D(5, 3, strides=2, padding="same", activation="relu")
        Conv3DTranspose(5, 3)
        Conv3DTranspose(5, 3, strides=2, padding="same", activation="relu")
        MaxPooling3D()
        MaxPooling3D(3, strides=2, padding="same")
        AveragePooling3D()
        GlobalAveragePooling3D()
        GlobalMaxPooling3D()
        AdaptiveAveragePooling3D(3)
        AdaptiveMaxPooling3D(3)
        UpSampling3D()
        ZeroPadding3D()
        Cropping3D()
        SpatialDropout3D(0.3)
        BatchNormalization()
        TimeDistributed(Conv2D(5, 3))
        ConvLSTM2D(3, 3, return_sequences=True)
        ConvLSTM3D(3, 3) <- keras.ops.expand_dims(x, 1)
    """,
}

_AUGMENTS = "augments images by Keras's random numbers, before a model as a rule"
_TEXT = "makes numbers of strings or whole numbers, before a model"
_OTHERS = "wraps what belongs to another framework, or a file"
EXCLUDED = {
    "Layer": "is abstract", "Wrapper": "is abstract", "InputLayer": "computes nothing", "InputSpec": "is no layer",
    "FlaxLayer": _OTHERS, "JaxLayer": _OTHERS, "TFSMLayer": _OTHERS, "TorchModuleWrapper": _OTHERS,
    "CategoryEncoding": _TEXT, "Discretization": _TEXT, "HashedCrossing": _TEXT, "Hashing": _TEXT, "IntegerLookup": _TEXT,
    "StringLookup": _TEXT, "TextVectorization": _TEXT,
    "MaxNumBoundingBoxes": "pads boxes, before a model",
    **dict.fromkeys([
        "AugMix", "AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization", "CutMix", "Equalization", "MixUp",
        "RandAugment", "RandomBrightness", "RandomColorDegeneration", "RandomColorJitter", "RandomContrast",
        "RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale", "RandomHue",
        "RandomInvert", "RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness",
        "RandomShear", "RandomTranslation", "RandomZoom", "Solarization"], _AUGMENTS),
}
