from regard.training.tensors import *
